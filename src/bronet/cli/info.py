"""`bronet recipes`, `data` and `info`: what can be trained by name, and what is here."""

import platform
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from bronet.__about__ import __version__
from bronet.cli import options
from bronet.errors import BronetError
from bronet.files import Json
from bronet.wording import GIB

if TYPE_CHECKING:
    from bronet.run.folder import RunFolder

Facts = list[tuple[str, str]]

PACKAGES = ("torch", "numpy", "safetensors", "typer", "rich", "matplotlib")
LINE = "{:<32}{:>11}{:>8}{:>7}  {}"
RECORDED = ("pretrained", "command", "commit", "device", "finished", "seconds")


class ListByDefault(TyperGroup):
    """A group that lists the recipes when no command is given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["list"])


recipes_app = typer.Typer(cls=ListByDefault)
data_app = typer.Typer(help="Prepare a data set.\n\nExample:  bronet data unpack datasets/imagenet --split train")


@recipes_app.callback()
def recipes() -> None:
    """List the named recipes, or show one as YAML.

    Example:  bronet recipes show digits/quickstart > mine.yaml

    Writes nothing. A YAML file, changed as you like, is what `bronet train` reads. Without a command it lists.
    """


@recipes_app.command("list")
def list_recipes() -> None:
    """List the recipes by data set, with what is known of each.

    Example:  bronet recipes

    Beside parameters, epochs and batch size: the trained network of that recipe that has a name, how long its training
    took, and run folders of that recipe in runs/. Writes nothing.
    """
    from bronet.cli.console import say
    from bronet.models import build_model
    from bronet.recipe import named_recipe, recipe_names

    trained = _trained()
    recipes = [named_recipe(name) for name in recipe_names()]
    say(LINE.format("recipe", "parameters", "epochs", "batch", "trained"))
    for data in dict.fromkeys(recipe.data.name for recipe in recipes):
        say(f"\n{data}")
        for recipe in (recipe for recipe in recipes if recipe.data.name == data):
            model = build_model(recipe.model, recipe.data.spec(), device="meta")
            count = sum(parameter.numel() for parameter in model.parameters())
            numbers = (f"{count:,}", recipe.train.epochs, recipe.train.batch_size)
            say(LINE.format(recipe.name, *numbers, "; ".join(trained.get(recipe.name, ()))).rstrip())


def _trained() -> dict[str, list[str]]:
    """Return by recipe the networks with names and the runs in the folder of runs, with the times of their training."""
    from bronet.pretrained import find_network
    from bronet.pretrained.places import how_to_get, pretrained_names
    from bronet.run.folder import RunFolder

    told: dict[str, list[str]] = {}
    for name in pretrained_names():
        if how_to_get(name):  # what its record says lies elsewhere, and its name is that of the recipe in reverse
            told.setdefault("/".join(reversed(name.split("/"))), []).append(f"{name}, not on this machine")
        else:
            network = find_network(name)
            told.setdefault(network.recipe.name, []).append(f"{name}{_time(network.record)}")
    for path in sorted(options.RUNS.glob("*/recipe.yaml")):
        run = RunFolder(path.parent)
        with suppress(BronetError):  # a folder that cannot be read is no reason to list nothing
            record = run.read_record()
            if "pretrained" not in record:
                told.setdefault(run.recipe.name, []).append(f"{run.path}{_time(record)}")
    return told


def _time(record: Json) -> str:
    from bronet.wording import duration_text

    seconds = record.get("seconds")
    return f", {duration_text(seconds)} on {record.get('device')}" if isinstance(seconds, int | float) else ""


@recipes_app.command()
def show(name: Annotated[str, options.recipe_named("A name that the list shows.", metavar="NAME")]) -> None:
    """Print a recipe as YAML, every setting written out.

    Example:  bronet recipes show cifar10/bronet-m

    Writes nothing.
    """
    from bronet.recipe import named_recipe, to_text

    typer.echo(to_text(named_recipe(name)), nl=False)


@data_app.command()
def unpack(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the parquet files are.")],
    *,
    split: Annotated[Literal["train", "validation", "test"], typer.Option(help="Which files.")] = "train",
) -> None:
    """Unpack parquet files into one folder per class.

    Example:  bronet data unpack datasets/imagenet --split train

    Writes FOLDER/SPLIT with one numbered folder per class; needs as much space as the parquet files. The folder
    appears when all is done.
    """
    from bronet.data.columns import parquet_files, unpack_parquet

    files = parquet_files(folder, split)
    if not files:
        raise BronetError(f"{folder} must hold {split}*.parquet, found none")
    count = unpack_parquet(files, folder / split)
    typer.echo(f"unpacked: {count:,} images in {folder / split}")


def info(
    run: options.OptionalRunArgument = None, model: options.ModelOption = None, data_dir: options.DataDirOption = None
) -> None:
    """Tell versions, devices, data; of a RUN, what it holds.

    Example:  bronet info runs/quickstart

    Writes nothing.
    """
    from bronet.cli.console import show_facts

    show_facts(_installation(data_dir) if run is None else _run_or_network(run, model))


def _installation(data_dir: Path | None) -> Facts:
    """Return versions, devices, and where each network and data set is; the content of files is not checked."""
    from importlib.metadata import version

    import torch

    from bronet.data import data_folder
    from bronet.data.load import IMAGENET
    from bronet.data.official import LAYOUTS, TINY_IMAGENET
    from bronet.pretrained.places import how_to_get, pretrained_names

    facts = [("bronet", __version__), ("python", platform.python_version())]
    facts += [(package, version(package)) for package in PACKAGES]
    facts += [("cpu", f"{platform.machine()}, threads: {torch.get_num_threads()}")]
    for number in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(number)
        facts += [(f"cuda:{number}", f"{device.name}, {device.total_memory / GIB:.0f} GiB")]
    if not torch.cuda.is_available():
        facts += [("cuda", "no device found")]
    absent = {name: remedy for name in pretrained_names() if (remedy := how_to_get(name))}
    facts += [("pretrained", ", ".join(name for name in pretrained_names() if name not in absent))]
    facts += [("not on this machine", f"{name}: {remedy}") for name, remedy in absent.items()]
    folder = data_folder(data_dir)
    facts += [("digits", "built in"), ("data folder", f"{folder}{'' if folder.is_dir() else ' (not there)'}")]
    for known in (*LAYOUTS.values(), TINY_IMAGENET):
        facts += [(known.name, str(known.place(folder) or f"not found; see {known.url}"))]
    imagenet = folder / IMAGENET
    return [*facts, (IMAGENET, str(imagenet) if imagenet.exists() else "not found; see docs/training.md")]


def _run_or_network(path: Path, model: str | None) -> Facts:
    """Return what is known of a run, or of a pretrained network, which is not copied for this."""
    from bronet.pretrained import find_network
    from bronet.recipe.architecture import OwnArchitecture
    from bronet.run.folder import PAGE, open_run

    def there(path: Path, words: str) -> str:
        return str(path) if path.exists() else f"none yet; {options.command_for(words, run.path, model=own)}"

    network = find_network(path)
    recipe, facts = network.recipe, network.record
    own = recipe.model.name if isinstance(recipe.model, OwnArchitecture) else None
    trained = ("recipe", f"{recipe.name} on {recipe.data.name}, seed {recipe.train.seed}")
    if network.weights_sha256 is not None:
        card = str(network.folder / "README.md")
        whole = [("pretrained", network.name), trained, ("weights", str(network.weights)), ("card", card)]
    else:
        run = options.own_run(open_run(path), model)
        certificate = run.certificate(run.certified_split()).facts
        came_from_elsewhere = run.weights.exists() and not run.log.exists()
        epochs = f"{len(run.logged())} of {recipe.train.epochs} epochs"
        facts = run.read_record()
        whole = [
            ("run", str(run.path)),
            trained,
            ("trained", "elsewhere" if came_from_elsewhere else epochs),
            ("weights", there(run.weights, "train --resume")),
            *([("network", f"your own code: {own}")] if own else []),
            *(_certificate(run) if certificate.exists() else [("certificate", there(certificate, "certify"))]),
            ("report", there(run.report / PAGE, "report")),
        ]
    return [*whole, *((key, str(facts[key])) for key in RECORDED if key in facts)]


def _certificate(run: "RunFolder") -> Facts:
    """Return what is certified, and what the layers said of themselves then, such as that one did not converge."""
    from bronet.report.evidence import read_evidence

    certificate = read_evidence(run).certificate
    facts = [("certificate", f"{certificate.images:,} {certificate.split} images, radii {', '.join(certificate.eps)}")]
    return facts + [("remark", f"{layer.name}: {layer.remark}") for layer in certificate.layers if layer.remark]
