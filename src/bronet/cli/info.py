"""`bronet info` and `bronet bench`: this installation, what a run folder holds, and how fast this machine is."""

import platform
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bronet.__about__ import __version__
from bronet.cli.options import (
    DataDirOption,
    Device,
    DeviceOption,
    OptionalRunArgument,
    SettingsOption,
    command_for,
    usable_device,
)

if TYPE_CHECKING:
    from bronet.run.folder import RunFolder

Facts = list[tuple[str, str]]

PACKAGES = ("torch", "numpy", "safetensors", "typer", "rich", "matplotlib")
GIB = 2**30
RECORDED = ("pretrained", "command", "commit", "device", "finished", "seconds")
GPU_RECIPE, CPU_RECIPE = "cifar10/bronet-m", "cifar10/bronet-small"


def bench(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            help="A name of `bronet recipes`, or a YAML file. Default: BRONet-M on a GPU, a small network on a CPU.",
        ),
    ] = None,
    *,
    settings: SettingsOption = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed repeats; the median is printed.")] = 10,
    device: DeviceOption = Device.AUTO,
) -> None:
    """Time a training step and inference of a recipe's network.

    Example:  bronet bench digits/quickstart --set train.batch_size=32

    Images are random, weights those of initialisation. Products are in bf16 on a GPU and in float32 on a CPU, unless a
    setting says otherwise. Writes nothing.
    """
    import statistics

    import torch

    from bronet.bench import hardware_name, time_inference, time_training, usual_precision
    from bronet.cli.console import facts_table, open_console
    from bronet.recipe import find_recipe, override

    place = torch.device(usable_device(device))
    chosen = find_recipe(recipe or (GPU_RECIPE if place.type == "cuda" else CPU_RECIPE))
    chosen = override(chosen, [usual_precision(place), *(settings or ())])
    sides = " x ".join(map(str, chosen.data.spec().shape))
    facts = [
        ("device", hardware_name(place)),
        ("recipe", f"{chosen.name}, {sides}, batch {chosen.train.batch_size}, {chosen.train.precision}"),
    ]
    for what, take in (("training step", time_training), ("inference", time_inference)):
        timing = take(chosen, place, repeats=repeats)
        memory = f"  {timing.peak_gib:5.2f} GiB" if timing.peak_gib else ""
        facts.append((what, f"{statistics.median(timing.times):.2f} ms{memory}"))
    open_console().print(facts_table(facts))


def info(run: OptionalRunArgument = None, data_dir: DataDirOption = None) -> None:
    """Tell versions, devices and data; of a RUN, what it holds.

    Example:  bronet info runs/quickstart

    Writes nothing.
    """
    from bronet.cli.console import facts_table, open_console

    open_console().print(facts_table(_installation(data_dir) if run is None else _run_or_network(run)))


def _installation(data_dir: Path | None) -> Facts:
    from importlib.metadata import version

    import torch

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
    return [*facts, *_data_sets(data_dir)]


def _data_sets(data_dir: Path | None) -> Facts:
    """Return where each data set is; the content of its files is not checked."""
    from bronet.data import data_folder
    from bronet.data.cifar import LAYOUTS
    from bronet.data.load import IMAGENET
    from bronet.data.tiny_imagenet import OFFICIAL

    folder = data_folder(data_dir)
    facts = [("digits", "built in"), ("data folder", f"{folder}{'' if folder.is_dir() else ' (not there)'}")]
    for known in (*LAYOUTS.values(), OFFICIAL):
        facts.append((known.name, str(known.place(folder) or f"not found; see {known.url}")))
    imagenet = folder / IMAGENET
    return [*facts, (IMAGENET, str(imagenet) if imagenet.exists() else "not found; see docs/training.md")]


def _run_or_network(path: Path) -> Facts:
    """Return what is known of a run, or of a pretrained network, which is not copied for this."""
    from bronet.pretrained import find_network
    from bronet.run.folder import open_run

    network = find_network(path)
    if network.weights_sha256 is None:
        return _run(open_run(path))
    recipe = network.recipe
    return [
        ("pretrained", network.name),
        ("recipe", f"{recipe.name} on {recipe.data.name}, seed {recipe.train.seed}"),
        ("weights", str(network.weights)),
        ("card", str(network.folder / "README.md")),
        *_recorded(network.record),
    ]


def _run(run: "RunFolder") -> Facts:
    from bronet.files import read_object
    from bronet.run.folder import ReportFiles

    def there(path: Path, words: str) -> str:
        return str(path) if path.exists() else f"none yet; {command_for(words, run.path)}"

    recipe, certificate = run.recipe, run.certificate(run.certified_split()).facts
    came_from_elsewhere = run.weights.exists() and not run.log.exists()
    epochs = f"{len(run.logged())} of {recipe.train.epochs} epochs"
    return [
        ("run", str(run.path)),
        ("recipe", f"{recipe.name} on {recipe.data.name}, seed {recipe.train.seed}"),
        ("trained", "elsewhere" if came_from_elsewhere else epochs),
        ("weights", there(run.weights, "train --resume")),
        *(_certificate(run) if certificate.exists() else [("certificate", there(certificate, "certify"))]),
        ("report", there(ReportFiles.of(run.report).page, "report")),
        *(_recorded(read_object(run.record)) if run.record.exists() else []),
    ]


def _certificate(run: "RunFolder") -> Facts:
    """Return what is certified, and what the layers said of themselves then, such as that one did not converge."""
    from bronet.report.evidence import read_evidence

    certificate = read_evidence(run).certificate
    facts = [("certificate", f"{certificate.images:,} {certificate.split} images, radii {', '.join(certificate.eps)}")]
    return facts + [("remark", f"{layer.name}: {layer.remark}") for layer in certificate.layers if layer.remark]


def _recorded(record: dict[str, object]) -> Facts:
    return [(key, str(record[key])) for key in RECORDED if key in record]
