"""Arguments that several commands share, with the words that explain them, and what they stand for."""

import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bronet.cli.own_layers import layer_files
from bronet.errors import BronetError
from bronet.files import require_writable

if TYPE_CHECKING:
    from bronet.recipe import DataRecipe
    from bronet.run.folder import RunFolder


class Device(StrEnum):
    """Where to compute."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Split(StrEnum):
    """Which images of a data set."""

    TEST = "test"
    TRAIN = "train"
    SAMPLE = "sample"


DeviceOption = Annotated[Device, typer.Option("--device", help="Where to compute; auto is cuda where there is one.")]
DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="Folder of the data sets. Default: the one that BRONET_DATA names, else datasets.",
        show_default=False,
    ),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one setting of the recipe; may be repeated."),
]
DownloadOption = Annotated[
    bool, typer.Option("--download", help="Fetch the official archive if it is not there. (The digits are built in.)")
]
RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a run, or a pretrained network.", show_default=False)
]
SplitOption = Annotated[
    Split | None,
    typer.Option(
        "--split",
        help="Which images. Default: test; of CIFAR-10, if it is not on this machine, the sample in this package.",
        show_default=False,
    ),
]


def checked_folder(out: Path | None) -> Path | None:
    """Return a folder to write to; refuse one that cannot be made before the work is done, not after."""
    if out is not None:
        require_writable(out)
    return out


def checked_file(out: Path | None) -> Path | None:
    """Return a file to write; refuse one that cannot be made before the work is done, not after."""
    if out is not None and out.is_dir():
        raise BronetError(f"--out must be a file, got the folder {out}; name a file in it")
    if out is not None:
        require_writable(out.parent)
    return out


RUNS = Path("runs")
"""Where run folders go by default."""


def typed_command() -> str:
    """Return the command line of this process, quoted for a shell, for the records of a run."""
    return shlex.join(["bronet", *sys.argv[1:]])


def command_for(words: str, run: Path, *, data_dir: Path | None = None) -> str:
    """Return a command about a run to go on with, with the files of layers that this one was given."""
    options = [word for file in layer_files() for word in ("--layers", str(file))]
    place = ["--data-dir", str(data_dir)] if data_dir is not None else []
    return shlex.join(["bronet", *options, *words.split(), str(run), *place])


def run_folder(run: Path, out: Path | None = None) -> "RunFolder":
    """Return the run folder that RUN names; a pretrained network is first copied to `out`, or to runs/NAME."""
    from bronet.pretrained import find_network, unpack
    from bronet.run.folder import RunFolder

    folder = RunFolder(run)
    if folder.recipe_file.is_file():
        if out is not None:
            raise BronetError(f"--out is for pretrained networks, got the run {run}; its certificate goes beside it")
        return folder
    network = find_network(run)
    return unpack(network, out or RUNS / network.name.replace("/", "-"))


def chosen_split(
    split: Split | None, data: "DataRecipe", *, data_dir: Path | None = None, download: bool = False
) -> Split:
    """Return the split asked for, else the test split; the sample of CIFAR-10 if no place is named and it is not here.

    What is printed then says that the numbers are a sample's.
    """
    from bronet.data import data_folder
    from bronet.data.cifar import LAYOUTS
    from bronet.data.embedded import SAMPLED

    if split is not None or data.name != SAMPLED or data_dir is not None or download:
        return split or Split.TEST
    layout, folder = LAYOUTS[SAMPLED], data_folder(None)
    found = any((folder / name).exists() for name in (layout.folder, layout.archive))
    return Split.TEST if found else Split.SAMPLE


def device_name(device: Device) -> str:
    """Return "cpu" or "cuda"; a device that is not there is refused."""
    import torch

    available = torch.cuda.is_available()
    if device is Device.CUDA and not available:
        raise BronetError("--device must be available, got cuda: no CUDA device was found; use cpu")
    if device is Device.AUTO:
        return "cuda" if available else "cpu"
    return device.value
