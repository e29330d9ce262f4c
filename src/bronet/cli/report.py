"""`bronet report`: from the rows of certified runs to tables, a curve and a page."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bronet.errors import BronetError

if TYPE_CHECKING:
    from bronet.report.table import Summary


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of certified runs.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="Folder of the comparison, when there are several runs.")] = Path(
        "report"
    ),
) -> None:
    """Draw tables, curve and HTML page of certified runs.

    Example:  bronet report runs/quickstart

    One run: writes its folder report/ with report.html, curve.png, curve.pdf, summary.md and summary.json.
    Several: writes comparison.md, comparison.csv and curve.png into --out. Needs no weights and no data.
    """
    from bronet.cli.console import open_console, say, show_results
    from bronet.report import write_report
    from bronet.report.evidence import read_evidence
    from bronet.report.table import summarize

    console = open_console()
    summaries = [summarize(read_evidence(run)) for run in runs]
    written = list(write_report(runs[0])) if len(runs) == 1 else write_comparison(summaries, out)
    show_results(console, summaries)
    for path in written:
        say(console, f"wrote    {path}")


def write_comparison(summaries: "list[Summary]", folder: Path) -> list[Path]:
    """Write one table and one plot of several runs, and return the paths; the runs need different names."""
    from bronet.atomic import replace_bytes
    from bronet.recipe import parse_budget
    from bronet.report.curve import draw_curve, figure_bytes
    from bronet.report.table import csv_table, markdown_table

    name, count = Counter(summary.evidence.name for summary in summaries).most_common(1)[0]
    if count > 1:
        raise BronetError(f"runs to compare must have different folder names, got {name} {count} times; rename one")
    radii = {text for summary in summaries for text in summary.evidence.certificate.eps}
    curves = {summary.evidence.name: summary.evidence.rows for summary in summaries}
    contents = {
        folder / "comparison.md": markdown_table(summaries).encode(),
        folder / "comparison.csv": csv_table(summaries).encode(),
        folder / "curve.png": figure_bytes(draw_curve(curves, sorted(radii, key=parse_budget)), "png"),
    }
    for path, content in contents.items():
        replace_bytes(path, content)
    return list(contents)
