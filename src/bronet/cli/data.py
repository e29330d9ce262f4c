"""`bronet data`: prepare data sets that cannot be trained on as they come."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


class ParquetSplit(StrEnum):
    """Splits as the files of a hub name them."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


@app.callback()
def data() -> None:
    """Prepare a data set.

    Example:  bronet data unpack datasets/imagenet --split train
    """


@app.command()
def unpack(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the parquet files are.", show_default=False)],
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
