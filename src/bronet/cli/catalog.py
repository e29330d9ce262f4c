"""`bronet recipes` and `bronet data`: what can be trained by name, and data sets that must be prepared for it."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

LIST = "list"


class ListByDefault(TyperGroup):
    """A group that lists the recipes when no command is given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after `bronet recipes`."""
        return super().parse_args(ctx, args or [LIST])


class ParquetSplit(StrEnum):
    """Splits as the files of a hub name them."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


recipes_app = typer.Typer(cls=ListByDefault)
data_app = typer.Typer()


@recipes_app.callback()
def recipes() -> None:
    """List the named recipes, or show one as YAML.

    Example:  bronet recipes show digits/quickstart > mine.yaml

    Writes nothing. A YAML file, changed as you like, is what `bronet train` reads. Without a command it lists.
    """


@recipes_app.command(LIST)
def list_recipes() -> None:
    """List the recipes with parameters, epochs and batch size.

    Example:  bronet recipes

    Writes nothing.
    """
    from rich.table import Table
    from rich.text import Text

    from bronet.cli.console import PIPE_WIDTH, open_console
    from bronet.models import build_model
    from bronet.recipe import named_recipe, recipe_names

    table = Table(box=None, pad_edge=False)
    for heading in ("recipe", "data set"):
        table.add_column(heading, no_wrap=True)
    for heading in ("parameters", "epochs", "batch"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in recipe_names():
        recipe = named_recipe(name)
        model = build_model(recipe.model, recipe.data.spec(), device="meta")
        count = sum(parameter.numel() for parameter in model.parameters())
        numbers = (f"{count:,}", str(recipe.train.epochs), str(recipe.train.batch_size))
        table.add_row(Text(name), recipe.data.name, *numbers)
    console = open_console()
    console.width = max(console.width, PIPE_WIDTH)  # in a narrow terminal a line goes on in the next; no number is cut
    console.print(table, soft_wrap=True)


@recipes_app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that the list shows.")],
) -> None:
    """Print a recipe as YAML, every setting written out.

    Example:  bronet recipes show cifar10/bronet-m

    Writes nothing.
    """
    from bronet.recipe import named_recipe, to_text

    typer.echo(to_text(named_recipe(name)), nl=False)


@data_app.callback()
def data() -> None:
    """Prepare a data set.

    Example:  bronet data unpack datasets/imagenet --split train
    """


@data_app.command()
def unpack(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the parquet files are.")],
    *,
    split: Annotated[ParquetSplit, typer.Option("--split", help="Which files.")] = ParquetSplit.TRAIN,
) -> None:
    """Unpack parquet files into one folder per class.

    Example:  bronet data unpack datasets/imagenet --split train

    Writes FOLDER/SPLIT with one numbered folder per class; needs as much space as the parquet files. The folder
    appears when all is done.
    """
    from bronet.data.parquet import parquet_files, unpack_parquet
    from bronet.errors import BronetError

    files = parquet_files(folder, split.value)
    if not files:
        raise BronetError(f"{folder} must hold {split.value}*.parquet, found none")
    count = unpack_parquet(files, folder / split.value)
    typer.echo(f"unpacked: {count:,} images in {folder / split.value}")
