"""Arguments that several commands share, with the words that explain them, and what they stand for."""

import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bronet.errors import BronetError

if TYPE_CHECKING:
    from bronet.data import FileSet, ImageSet
    from bronet.recipe import DataRecipe


class Device(StrEnum):
    """Where to compute."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Split(StrEnum):
    """Which images of a data set."""

    TEST = "test"
    TRAIN = "train"


DeviceOption = Annotated[Device, typer.Option("--device", help="Where to compute; auto is cuda where there is one.")]
DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="Folder of the data sets. Default: the one that BRONET_DATA names, else datasets.",
        show_default=False,
    ),
]
DownloadOption = Annotated[
    bool, typer.Option("--download", help="Fetch the official archive if it is not there. (The digits are built in.)")
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.", show_default=False)]


def typed_command() -> str:
    """Return the command line of this process, quoted for a shell, for the records of a run."""
    return shlex.join(["bronet", *sys.argv[1:]])


def device_name(device: Device) -> str:
    """Return "cpu" or "cuda"; a device that is not there is refused."""
    import torch

    available = torch.cuda.is_available()
    if device is Device.CUDA and not available:
        raise BronetError("--device must be available, got cuda: no CUDA device was found; use cpu")
    if device is Device.AUTO:
        return "cuda" if available else "cpu"
    return device.value


def fetch_dataset(data: "DataRecipe", split: Split, *, data_dir: Path | None, download: bool) -> "ImageSet | FileSet":
    """Return the images or their files; with `download`, archives that are missing are fetched first."""
    from bronet.data import open_images

    return open_images(data, split.value, data_dir=data_dir, download=download)
