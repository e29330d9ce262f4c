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
    checked_folder,
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
    from bronet.run.folder import RunFolder


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
            "--out",
            help="Run folder of a pretrained network. Default: runs/NAME, with dashes.",
            show_default=False,
            callback=checked_folder,
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

    named = run or pretrained
    if named is None or (run and pretrained):
        raise BronetError("give either RUN or --pretrained NAME, and not both")
    console = open_console()
    folder = run_folder(named, out)
    split = chosen_split(split, folder.recipe.data, data_dir=data_dir, download=download)
    certify_folder(
        folder,
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
    show_certificate(folder, console, split=split, naive=naive)
    say(console, f"next:    {command_for('report', folder.path)}")


def show_certificate(
    run: "RunFolder", console: "Console", *, split: Split = Split.TEST, naive: bool = False
) -> "Evidence":
    """Print the table of a certified run and where its rows are, and return what was certified."""
    from bronet.cli.console import sample_note, say, show_naive, show_results
    from bronet.report.evidence import read_evidence
    from bronet.report.table import summarize

    evidence = read_evidence(run, split=split.value)
    show_results(console, [summarize(evidence)])
    if naive:
        show_naive(console, summarize(evidence.naive()))
    if split is Split.SAMPLE:
        say(console, sample_note(evidence))
    say(console, f"rows:    {run.certificate(split.value).rows}")
    return evidence


def certify_folder(
    run: "RunFolder",
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
    from bronet.recipe import parse_budget

    for radius in eps:
        parse_budget(radius, name="--eps")
    with counting(console, "certifying") as show:
        certify_run(
            run,
            eps=eps,
            split=split.value,
            limit=limit,
            targeted=targeted,
            device=device_name(device),
            data_dir=data_dir,
            download=download,
            command=command,
            progress=show,
        )
