"""`bronet info`: this installation, or what a run folder holds."""

import importlib.metadata
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bronet.__about__ import __version__
from bronet.cli.options import DataDirOption, command_for

if TYPE_CHECKING:
    from bronet.run.folder import RunFolder

Facts = list[tuple[str, str]]

PACKAGES = ("torch", "numpy", "safetensors", "typer", "rich", "matplotlib")
BYTES_PER_GIB = 2**30
RECORDED = ("pretrained", "command", "commit", "device", "finished", "seconds")


def info(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="The folder of a run, or a pretrained network.", show_default=False),
    ] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Tell versions, devices and data; of a RUN, what it holds.

    Example:  bronet info runs/quickstart

    Writes nothing.
    """
    from bronet.cli.console import facts_table, open_console

    facts = _installation(data_dir) if run is None else _facts(run)
    open_console().print(facts_table(facts))


def _facts(run: Path) -> Facts:
    """Return what is known of a run, or of a pretrained network, which is not copied for this."""
    from bronet.pretrained import find_network
    from bronet.run.folder import open_run

    network = find_network(run)
    if network.weights_sha256 is None:
        return _contents(open_run(run))
    recipe = network.recipe
    return [
        ("pretrained", network.name),
        ("recipe", f"{recipe.name} on {recipe.data.name}, seed {recipe.train.seed}"),
        ("weights", str(network.weights)),
        ("card", str(network.folder / "README.md")),
        *_recorded(network.record),
    ]


def _recorded(record: dict[str, object]) -> Facts:
    return [(key, str(record[key])) for key in RECORDED if key in record]


def _installation(data_dir: Path | None) -> Facts:
    import torch

    from bronet.pretrained import pretrained_names

    facts = [("bronet", __version__), ("python", platform.python_version())]
    facts += [(package, importlib.metadata.version(package)) for package in PACKAGES]
    facts += [("cpu", f"{platform.machine()}, threads: {torch.get_num_threads()}")]
    for number in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(number)
        facts += [(f"cuda:{number}", f"{device.name}, {device.total_memory / BYTES_PER_GIB:.0f} GiB")]
    if not torch.cuda.is_available():
        facts += [("cuda", "no device found")]
    return [*facts, ("pretrained", ", ".join(pretrained_names())), *_data_sets(data_dir)]


def _data_sets(data_dir: Path | None) -> Facts:
    """Return where each data set lies; a name alone says nothing about what the files hold."""
    from bronet.data import data_folder, tiny_imagenet
    from bronet.data.cifar import LAYOUTS
    from bronet.data.load import IMAGENET

    folder = data_folder(data_dir)
    facts = [("digits", "built in"), ("data folder", f"{folder}{'' if folder.is_dir() else ' (not there)'}")]
    for name, layout in LAYOUTS.items():
        facts += [(name, _found(folder, (layout.folder, layout.archive), f"see {layout.url}"))]
    archive = (tiny_imagenet.FOLDER, tiny_imagenet.ARCHIVE)
    facts += [(tiny_imagenet.NAME, _found(folder, archive, f"see {tiny_imagenet.URL}"))]
    return [*facts, (IMAGENET, _found(folder, (IMAGENET,), "see docs/training.md"))]


def _found(folder: Path, names: tuple[str, ...], advice: str) -> str:
    return next((str(folder / name) for name in names if (folder / name).exists()), f"not found; {advice}")


def _to_come(run: "RunFolder", words: str) -> str:
    return f"none yet; {command_for(words, run.path)}"


def _contents(run: "RunFolder") -> Facts:
    from bronet.run.folder import ReportFiles

    recipe = run.recipe
    facts = [
        ("run", str(run.path)),
        ("recipe", f"{recipe.name} on {recipe.data.name}, seed {recipe.train.seed}"),
        ("trained", _epochs(run, recipe.train.epochs)),
        ("weights", str(run.weights) if run.weights.exists() else _to_come(run, "train --resume")),
    ]
    page = ReportFiles.of(run.report).page
    certified = run.certificate(run.certified_split()).facts.exists()
    facts += _certificate(run) if certified else [("certificate", _to_come(run, "certify"))]
    facts += [("report", str(page) if page.exists() else _to_come(run, "report"))]
    if run.record.exists():
        from bronet.files import read_object

        facts += _recorded(read_object(run.record))
    return facts


def _epochs(run: "RunFolder", wanted: int) -> str:
    """Return how far the training is, if it was here: weights may come from elsewhere."""
    if run.weights.exists() and not run.log.exists():
        return "elsewhere"
    return f"{len(run.logged())} of {wanted} epochs"


def _certificate(run: "RunFolder") -> Facts:
    """Return what is certified, and what the layers said of themselves then, such as that one did not converge."""
    from bronet.report.evidence import read_evidence

    certificate = read_evidence(run).certificate
    facts = [("certificate", f"{certificate.images:,} {certificate.split} images, radii {', '.join(certificate.eps)}")]
    return facts + [("remark", f"{layer.name}: {layer.remark}") for layer in certificate.layers if layer.remark]
