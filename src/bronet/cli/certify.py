"""`bronet certify`: from trained weights to one proved radius per image."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bronet.cli.options import (
    DataDirOption,
    Device,
    DeviceOption,
    DownloadOption,
    Split,
    SplitOption,
    chosen_split,
    command_for,
    device_name,
    run_folder,
    typed_command,
)
from bronet.errors import BronetError

if TYPE_CHECKING:
    from rich.console import Console

    from bronet.report.evidence import Evidence


def certify(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="The folder of a run, or a pretrained network.", show_default=False),
    ] = None,
    *,
    pretrained: Annotated[
        Path | None,
        typer.Option(
            "--pretrained",
            metavar="NAME",
            help="A pretrained network, by name or folder, in place of RUN.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Run folder of a pretrained network. Default: runs/NAME, with dashes.", show_default=False
        ),
    ] = None,
    eps: Annotated[
        list[str] | None,
        typer.Option(
            "--eps",
            metavar="RADIUS",
            help="Radius to report, such as 36/255 or 0.5; may be repeated. Default: the recipe's.",
            show_default=False,
        ),
    ] = None,
    split: SplitOption = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Only the first N images.", metavar="N", show_default=False)
    ] = None,
    targeted: Annotated[
        bool, typer.Option("--targeted", help="Also write targeted.csv: how far each image is from each class.")
    ] = False,
    naive: Annotated[
        bool, typer.Option("--naive", help="Also show the numbers of the literature's way, which is not a proof.")
    ] = False,
    device: DeviceOption = Device.AUTO,
    data_dir: DataDirOption = None,
    download: DownloadOption = False,
) -> None:
    """Prove how far each image is from changing its class.

    Example:  bronet certify runs/quickstart --eps 1/4 --eps 1/2

    Computed in float64 with rounding counted. Writes into the run folder: certificate.csv (one row per image)
    and certificate.json (the proved bound of every layer); of other splits certificate-train.csv and so on.
    `bronet verify` checks them later. A pretrained network is copied to a run folder first.
    """
    from bronet.cli.console import open_console, say
    from bronet.run.folder import open_run

    named = run or pretrained
    if named is None or (run and pretrained):
        raise BronetError("give either RUN or --pretrained NAME, and not both")
    console = open_console()
    run = run_folder(named, out)
    split = chosen_split(split, open_run(run).recipe().data, data_dir=data_dir, download=download)
    certify_folder(
        run,
        console,
        eps=tuple(eps or ()),
        split=split,
        limit=limit,
        targeted=targeted,
        device=device,
        data_dir=data_dir,
        download=download,
        command=typed_command(),
    )
    show_certificate(run, console, split=split, naive=naive)
    say(console, f"next:    {command_for('report', run)}")


def show_certificate(folder: Path, console: "Console", *, split: Split = Split.TEST, naive: bool = False) -> "Evidence":
    """Print the table of a certified run and where its rows are, and return what was certified."""
    from bronet.cli.console import sample_note, say, show_naive, show_results
    from bronet.report.evidence import read_evidence
    from bronet.report.table import summarize

    evidence = read_evidence(folder, split=split.value)
    show_results(console, [summarize(evidence)])
    if naive:
        show_naive(console, summarize(evidence.naive()))
    if split is Split.SAMPLE:
        say(console, sample_note(evidence))
    name = "certificate.csv" if split is Split.TEST else f"certificate-{split.value}.csv"
    say(console, f"rows:    {folder / name}")
    return evidence


def certify_folder(
    folder: Path,
    console: "Console",
    *,
    eps: tuple[str, ...] = (),
    split: Split = Split.TEST,
    limit: int | None = None,
    targeted: bool = False,
    device: Device,
    data_dir: Path | None = None,
    download: bool = False,
    command: str,
) -> None:
    """Certify a run while showing the progress; the folder keeps what it had if anything fails."""
    from bronet.certificates.run import certify_run
    from bronet.cli.console import counting
    from bronet.data import load_images
    from bronet.recipe import parse_budget
    from bronet.run.folder import open_run

    for radius in eps:
        parse_budget(radius, name="--eps")
    run, place = open_run(folder), device_name(device)
    images = load_images(
        run.recipe().data, split.value, limit=limit, data_dir=data_dir, download=download, classes=run.classes()
    )
    with counting(console, len(images), "certifying") as show:
        certify_run(
            folder,
            images=images,
            eps=eps,
            split=split.value,
            targeted=targeted,
            device=place,
            command=command,
            progress=show,
        )
