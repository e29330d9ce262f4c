"""`bronet recipes`: what can be trained by name."""

from typing import Annotated

import typer

app = typer.Typer(invoke_without_command=True)


@app.callback()
def recipes(ctx: typer.Context) -> None:
    """List the named recipes, or show one as YAML.

    Example:  bronet recipes show digits/quickstart > mine.yaml

    Writes nothing. A YAML file, changed as you like, is what `bronet train` reads.
    """
    if ctx.invoked_subcommand is None:
        _list()


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


def _list() -> None:
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
