"""`bronet report`: from the rows of certified runs to tables, a curve and a page."""

from pathlib import Path
from typing import Annotated

import typer

from bronet.cli.options import run_folder


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Certified runs.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="Folder of the comparison, when there are several runs.")] = Path(
        "report"
    ),
) -> None:
    """Draw tables, curve and HTML page of certified runs.

    Example:  bronet report runs/quickstart

    One run: writes its folder report/ with report.html, summary.md, .json and .csv, and the certified accuracy and the
    margins as curve and margins, .png and .pdf. Several: writes comparison.md, .csv and .json, curve and margins into
    --out. Needs no weights and no data.
    """
    from bronet.cli.console import open_console, say, show_results
    from bronet.report import write_comparison, write_report
    from bronet.report.evidence import read_evidence
    from bronet.report.table import summarize

    console = open_console()
    runs = [run_folder(run) for run in runs]
    summaries = [summarize(read_evidence(run)) for run in runs]
    written = list(write_report(runs[0])) if len(runs) == 1 else write_comparison(summaries, out)
    show_results(console, summaries)
    for path in written:
        say(console, f"wrote    {path}")
