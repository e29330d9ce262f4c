"""`bronet recipes`: what can be trained by name."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

LIST = "list"


class ListByDefault(TyperGroup):
    """A group that lists the recipes when no command is given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after `bronet recipes`."""
        return super().parse_args(ctx, args or [LIST])


app = typer.Typer(cls=ListByDefault)


@app.callback()
def recipes() -> None:
    """List the named recipes, or show one as YAML.

    Example:  bronet recipes show digits/quickstart > mine.yaml

    Writes nothing. A YAML file, changed as you like, is what `bronet train` reads.
    """


@app.command(LIST)
def list_recipes() -> None:
    """List the recipes with their parameters, epochs and batch size.

    Example:  bronet recipes

    Writes nothing.
    """
    from rich.table import Table
    from rich.text import Text

    from bronet.cli.console import open_console
    from bronet.models import build_model
    from bronet.recipe import dataset_spec, named_recipe, recipe_names

    table = Table(box=None, pad_edge=False)
    table.add_column("recipe", no_wrap=True)
    table.add_column("data set")
    for heading in ("parameters", "epochs", "batch"):
        table.add_column(heading, justify="right")
    for name in recipe_names():
        recipe = named_recipe(name)
        model = build_model(recipe.model, dataset_spec(recipe.data.name), device="meta")
        count = sum(parameter.numel() for parameter in model.parameters())
        cells = (name, recipe.data.name, f"{count:,}", str(recipe.train.epochs), str(recipe.train.batch_size))
        table.add_row(*(Text(cell) for cell in cells))
    open_console().print(table)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that the list shows.", show_default=False)],
) -> None:
    """Print a recipe as YAML, every setting written out.

    Example:  bronet recipes show cifar10/bronet-m

    Writes nothing.
    """
    from bronet.recipe import named_recipe, to_text

    typer.echo(to_text(named_recipe(name)), nl=False)
