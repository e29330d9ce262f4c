"""Arguments that several commands share, each declared once, and what they stand for."""

import importlib.util
import os
import shlex
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bronet.errors import BronetError
from bronet.files import require_writable
from bronet.run.shares import POLL_SECONDS, Share

if TYPE_CHECKING:
    from bronet.recipe import DataRecipe
    from bronet.run.folder import RunFolder

RUNS = Path("runs")
"""Where run folders go by default."""
LEAST_SUSPECT = 2.0
"""A radius from here on, written without a fraction, is taken for levels of 255: certified radii are far smaller."""


Device = Literal["auto", "cpu", "cuda", "mps"]
Split = Literal["test", "train", "sample"]


def _checked_radii(eps: Sequence[str] | None) -> tuple[str, ...]:
    """Return the radii of --eps as they were written; refuse what is no number, and levels of 255 without a unit."""
    from bronet.recipe import parse_budget

    for text in eps or ():
        if parse_budget(text, name="--eps") >= LEAST_SUSPECT and "/" not in text:
            raise BronetError(
                f"--eps must be a distance between images with pixels in [0, 1], got {text}; for levels of 255 write "
                f"{text}/255, or {text}/1 if that distance is meant"
            )
    return tuple(eps or ())


DeviceOption = Annotated[
    Device, typer.Option("--device", help="Where to compute; auto is cuda where there is one; mps is refused.")
]
DataDirOption = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Folder of the data sets. Default: the one that BRONET_DATA names, else datasets."),
]
DownloadOption = Annotated[
    bool, typer.Option("--download", help="Fetch the official archive if it is not there. (The digits are built in.)")
]
EpsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--eps",
        metavar="RADIUS",
        help="Radius, for pixels in [0, 1], such as 36/255 or 0.5; may be repeated.",
        callback=_checked_radii,
    ),
]
LayersOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--layers",
        metavar="FILE",
        help="Run a Python file of your own that registers layers, before the command; may be repeated.",
    ),
]
LimitOption = Annotated[int | None, typer.Option("--limit", min=1, help="Only the first N images.", metavar="N")]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="PACKAGE.MODULE:NET",
        help="Of a run of your own network: the class, or function, that makes it. Imported from Python's path.",
    ),
]
_RUN = typer.Argument(metavar="RUN", help="The folder of a run, or a pretrained network.")
RunArgument = Annotated[Path, _RUN]
OptionalRunArgument = Annotated[Path | None, _RUN]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one setting of the recipe; may be repeated."),
]
SplitOption = Annotated[
    Split | None,
    typer.Option(
        "--split",
        help="Which images. Default: test; of CIFAR-10, if it is not on this machine, the sample in this package.",
    ),
]

_layer_files: list[Path] = []


def run_layer_files(paths: Sequence[Path]) -> None:
    """Run the Python files that --layers names, in order, and remember them for the commands that are recommended.

    The only way in which the command line runs code of the user, and only what the user names: recipes, checkpoints and
    certificates never name a file to run. Each is a module that hides no other, whatever its name.
    """
    _layer_files[:] = paths
    for path in paths:
        if path.suffix != ".py" or not path.is_file():
            raise BronetError(f"--layers must be a Python file that registers layers, got {path}")
        name = f"bronet_layers_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BronetError:
            raise
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in frames if frame.filename == spec.origin]
            where = f" in line {lines[-1]}" if lines else ""
            raise BronetError(f"--layers {path} must run, but failed{where}: {type(error).__name__}: {error}") from None


def recipe_named(help: str, *, metavar: str = "RECIPE") -> Any:
    """Return the argument that names a recipe, which a shell may complete."""

    def completed(incomplete: str) -> list[str]:
        from bronet.recipe import recipe_names

        return [name for name in recipe_names() if name.startswith(incomplete)]

    return typer.Argument(metavar=metavar, help=help, autocompletion=completed)


def typed_command() -> str:
    """Return the command line of this process, quoted for a shell, for the records of a run."""
    return shlex.join(["bronet", *sys.argv[1:]])


def command_for(words: str, run: Path, *, data_dir: Path | None = None, model: str | None = None) -> str:
    """Return a command about a run to go on with, with the files of layers that this one was given."""
    layers = [word for file in _layer_files for word in ("--layers", str(file))]
    given = {"--model": model, "--data-dir": data_dir}
    options = [str(word) for option in given.items() if option[1] is not None for word in option]
    return shlex.join(["bronet", *layers, *words.split(), str(run), *options])


def out_option(help: str, *, file: bool = False) -> Any:
    """Return the option --out; a folder or file that cannot be written is refused before the work, not after."""

    def checked(out: Path | None) -> Path | None:
        if out is not None:
            if file and out.is_dir():
                raise BronetError(f"--out must be a file, got the folder {out}; name a file in it")
            require_writable(out.parent if file else out)
        return out

    return typer.Option("--out", help=help, callback=checked)


@contextmanager
def opened_runs(*runs: Path, out: Path | None = None, model: str | None = None) -> Iterator[list["RunFolder"]]:
    """Give the folders of runs; a pretrained network is first copied to `out`, or to runs/NAME.

    `model` names the network of runs that are of the user's own. If the block fails, a copy that was made for it is
    removed again, unless something was added to it.
    """
    with ExitStack() as stack:
        opened = [own_run(stack.enter_context(_opened_run(run, out)), model) for run in runs]
        if model is not None and opened and all(folder.network is None for folder in opened):
            raise BronetError(f"--model is for runs of a network of your own, got {runs[0]}; leave it out")
        yield opened


def own_run(run: "RunFolder", model: str | None) -> "RunFolder":
    """Return a run with the network that --model names, if it is of the user's own."""
    if model is None:
        return run
    from bronet.run.own import with_own_network

    return with_own_network(run, model)


@contextmanager
def _opened_run(run: Path, out: Path | None) -> Iterator["RunFolder"]:
    from bronet.pretrained import find_network, unpack
    from bronet.run.folder import RunFolder, remove_run

    folder = RunFolder(run)
    if folder.recipe_file.is_file():
        if out is not None:
            raise BronetError(f"--out is for pretrained networks, got the run {run}; its certificate goes beside it")
        yield folder
        return
    network = find_network(run)
    place = out or RUNS / network.name.replace("/", "-")
    while not Share.of_this_process().is_main and not RunFolder(place).weights.exists():  # torchrun's first copies it
        time.sleep(POLL_SECONDS)
    made = [path for path in (place, *place.parents) if not path.exists()]
    copy = unpack(network, place)
    try:
        yield copy
    except Exception:
        if made and set(copy.path.iterdir()) <= {copy.recipe_file, copy.record, copy.weights}:
            remove_run(copy)
            with suppress(OSError):  # of a folder that holds something else by now
                for path in made[1:]:
                    path.rmdir()
        raise


def chosen_split(
    split: Split | None, data: "DataRecipe", *, data_dir: Path | None = None, download: bool = False
) -> Split:
    """Return the split asked for, else the test split; the sample of CIFAR-10 if no place is named and it is not here.

    What is printed then says that the numbers are a sample's.
    """
    from bronet.data import data_folder
    from bronet.data.load import SAMPLED
    from bronet.data.official import LAYOUTS

    if split is not None or data.name != SAMPLED or data_dir is not None or download:
        return split or "test"
    return "test" if LAYOUTS[SAMPLED].place(data_folder(None)) else "sample"


def usable_device(device: Device) -> str:
    """Return "cpu" or "cuda", under torchrun this process's GPU; a device that is not there is refused."""
    import torch

    if device == "mps":
        raise BronetError(
            "--device must be auto, cpu or cuda, got mps: Apple's GPUs have no float64, in which everything is proved; "
            "use cpu"
        )
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise BronetError("--device must be available, got cuda: no CUDA device was found; use cpu")
    if device == "cpu" or not available:
        return "cpu"
    shared = Share.of_this_process().world > 1
    return f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}" if shared else "cuda"
