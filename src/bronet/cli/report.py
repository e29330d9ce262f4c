"""`bronet report`: from the rows of certified runs to tables, curves and pages."""

from pathlib import Path
from typing import Annotated

import typer

from bronet.cli.options import checked_folder, run_folder

REPORT = Path("report")
"""Where a comparison of runs goes by default."""


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Certified runs.", show_default=False)],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder to write to. Default: report; of one run, report/ in its folder.",
            callback=checked_folder,
        ),
    ] = None,
) -> None:
    """Draw tables, curve and HTML page of certified runs.

    Example:  bronet report runs/quickstart

    One run: writes report.html, summary.md, .json and .csv, and the certified accuracy and the margins as curve and
    margins, .png and .pdf, into its folder report/. Several: writes comparison.md, .csv and .json, curve and margins
    into the folder report. Needs no weights and no data. --out names another folder to write to.
    """
    from bronet.cli.console import open_console, say, show_results
    from bronet.report import write_comparison, write_summary
    from bronet.report.evidence import read_evidence
    from bronet.report.table import summarize

    console = open_console()
    folders = [run_folder(run) for run in runs]
    summaries = [summarize(read_evidence(folder)) for folder in folders]
    if len(folders) == 1:
        written = list(write_summary(summaries[0], out or folders[0].report))
    else:
        written = write_comparison(summaries, out or REPORT)
    show_results(console, summaries)
    for path in written:
        say(console, f"wrote    {path}")
