"""`bronet recipes`: what can be trained by name."""

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from rich.table import Table

    from bronet.recipe import Recipe

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

    Writes nothing. A YAML file, changed as you like, is what `bronet train` reads. Without a command it lists.
    """


@app.command(LIST)
def list_recipes() -> None:
    """List the recipes with parameters, epochs and batch size.

    Example:  bronet recipes

    Writes nothing.
    """
    from bronet.cli.console import PIPE_WIDTH, open_console

    console = open_console()
    console.width = max(console.width, PIPE_WIDTH)  # in a narrow terminal a line goes on in the next; no number is cut
    console.print(_all_recipes(), soft_wrap=True)


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


def _all_recipes() -> "Table":
    from rich.table import Table
    from rich.text import Text

    from bronet.recipe import named_recipe, recipe_names

    table = Table(box=None, pad_edge=False)
    for heading in ("recipe", "data set"):
        table.add_column(heading, no_wrap=True)
    for heading in ("parameters", "epochs", "batch"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in recipe_names():
        table.add_row(Text(name), *_facts(named_recipe(name)))
    return table


def _facts(recipe: "Recipe") -> tuple[str, str, str, str]:
    from bronet.models import build_model

    model = build_model(recipe.model, recipe.data.spec(), device="meta")
    count = sum(parameter.numel() for parameter in model.parameters())
    return recipe.data.name, f"{count:,}", str(recipe.train.epochs), str(recipe.train.batch_size)
