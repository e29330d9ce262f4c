"""`bronet recipes`: what can be trained by name."""

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from rich.table import Table

    from bronet.recipe import Recipe

LIST = "list"


class ListByDefault(TyperGroup):
    """A group that lists the recipes when no command is given, with or without a table's number."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after `bronet recipes`."""
        return super().parse_args(ctx, [LIST, *args] if not args or args[0] == "--table" else args)


app = typer.Typer(cls=ListByDefault)


@app.callback()
def recipes() -> None:
    """List the named recipes and sweeps, or show one as YAML.

    Example:  bronet recipes show digits/quickstart > mine.yaml

    Writes nothing. A YAML file, changed as you like, is what `bronet train` reads. Without a command it lists; `bronet
    recipes --table 1` lists one table of the paper, with its numbers.
    """


@app.command(LIST)
def list_recipes(
    table: Annotated[
        int | None,
        typer.Option("--table", metavar="N", help="Only one table of the paper, with its numbers.", show_default=False),
    ] = None,
) -> None:
    """List the recipes with parameters, epochs and batch size. Of one TABLE, beside the paper's numbers.

    Example:  bronet recipes --table 1

    Writes nothing.
    """
    from bronet.cli.console import PIPE_WIDTH, open_console

    console = open_console()
    console.width = max(console.width, PIPE_WIDTH)  # in a narrow terminal a line goes on in the next; no number is cut
    console.print(_all_recipes() if table is None else _paper_table(table), soft_wrap=True)


@app.command()
def sweep(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A sweep that the list shows.", show_default=False)],
) -> None:
    """Print the commands that train all members of a sweep, one per line.

    Example:  bronet recipes sweep cifar100/la-beta | sh

    Writes nothing.
    """
    from bronet.recipe import named_sweep

    for member in named_sweep(name).members():
        typer.echo(shlex.join(["bronet", "train", member.name]))


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
    """Return every recipe, then every sweep with the number of its members."""
    from bronet.recipe import named_recipe, named_sweep, recipe_names, sweep_names

    table = _empty_table("recipe", "data set", numbers=("parameters", "epochs", "batch"))
    for name in recipe_names():
        _add(table, name, *_facts(named_recipe(name)))
    for name in sweep_names():
        members = list(named_sweep(name).members())
        data, _, *rest = _facts(members[0])
        _add(table, name, data, f"{len(members)} members", *rest)
    return table


def _paper_table(number: int) -> "Table":
    """Return the rows of a table of the paper; quoted rows have no recipe."""
    from bronet.recipe import paper_rows

    rows = paper_rows(number)
    others = any(row.others for row in rows)
    table = _empty_table("row", "data", numbers=("clean", "36/255", "72/255", "108/255"))
    for heading in ("others", "recipe") if others else ("recipe",):
        table.add_column(heading, no_wrap=True)
    for row in rows:
        numbers = ("-" if value is None else f"{value:g}" for value in (row.clean, *row.certified))
        more = (", ".join(f"{key} {value:g}" for key, value in row.others.items()),) if others else ()
        _add(table, row.row, row.group, *numbers, *more, row.recipe or "-")
    return table


def _facts(recipe: "Recipe") -> tuple[str, str, str, str]:
    from bronet.models import build_model

    model = build_model(recipe.model, recipe.data.spec(), device="meta")
    count = sum(parameter.numel() for parameter in model.parameters())
    return recipe.data.name, f"{count:,}", str(recipe.train.epochs), str(recipe.train.batch_size)


def _empty_table(*words: str, numbers: tuple[str, ...]) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in words:
        table.add_column(heading, no_wrap=True)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _add(table: "Table", *cells: str) -> None:
    from rich.text import Text

    table.add_row(*(Text(cell) for cell in cells))
