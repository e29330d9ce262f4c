"""`bronet report`: from the rows of certified runs to tables, curves and pages."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bronet.cli.options import run_folder
from bronet.errors import BronetError

if TYPE_CHECKING:
    from rich.console import Console

REPORT = Path("report")
"""Where a comparison of runs and a figure go by default."""


def report(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN", help="Certified runs.", show_default=False)
    ] = None,
    *,
    table: Annotated[
        str | None,
        typer.Option("--table", metavar="N|all", help="A table of the paper, with our numbers.", show_default=False),
    ] = None,
    figure: Annotated[
        int | None,
        typer.Option("--figure", metavar="3|12", help="Draw CE, CE+CR and LA from --results.", show_default=False),
    ] = None,
    fill: Annotated[
        list[Path] | None,
        typer.Option("--fill", metavar="PAGE", help="Compute the generated blocks of a Markdown page anew."),
    ] = None,
    results: Annotated[Path, typer.Option("--results", help="Folder of published runs.")] = Path("results"),
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder to write to. Default: report; of one run, report/ in its folder."),
    ] = None,
) -> None:
    """Draw tables, curve and HTML page of certified runs. Or set tables of the paper beside published ones.

    Example:  bronet report runs/quickstart

    One run: writes report.html, summary.md, .json and .csv, and the certified accuracy and the margins as curve and
    margins, .png and .pdf, into its folder report/. Several: writes comparison.md, .csv and .json, curve and margins
    into the folder report. Needs no weights and no data. From published runs: --table prints the paper's rows, ours and
    the difference as Markdown; --figure writes figure-N.png and .pdf; --fill rewrites what stands between the markers
    of a page. --out names another folder to write to.
    """
    from bronet.cli.console import open_console

    wanted = [bool(runs), table is not None, figure is not None, bool(fill)]
    if sum(wanted) != 1:
        raise BronetError("give one of: certified runs, --table, --figure, --fill")
    console = open_console()
    if runs:
        _report_runs([run_folder(run) for run in runs], out, console)
        return
    from bronet.report.published import published_runs

    published = published_runs(results)
    if table is not None:
        from bronet.report.paper import all_tables, paper_table

        typer.echo(all_tables(published) if table == "all" else paper_table(_number(table), published), nl=False)
    elif figure is not None:
        from bronet.report.losses import draw_figure

        _write_figure(draw_figure(figure, published), (out or REPORT) / f"figure-{figure}")
    else:
        from bronet.files import replace_text
        from bronet.report import cut, tuning
        from bronet.report.fill import filled, read_page

        logs = [tuning.read_tuning(results / file) for file in (tuning.FILE, cut.FILE)]
        pages = {page: filled(read_page(page), published, *logs) for page in fill or []}
        for page, text in pages.items():
            replace_text(page, text)
            typer.echo(f"filled   {page}")


def _report_runs(runs: list[Path], out: Path | None, console: "Console") -> None:
    from bronet.cli.console import say, show_results
    from bronet.report import write_comparison, write_report
    from bronet.report.evidence import read_evidence
    from bronet.report.table import summarize

    summaries = [summarize(read_evidence(run)) for run in runs]
    one = len(runs) == 1
    written = list(write_report(runs[0], folder=out)) if one else write_comparison(summaries, out or REPORT)
    show_results(console, summaries)
    for path in written:
        say(console, f"wrote    {path}")


def _write_figure(figure: object, stem: Path) -> None:
    from matplotlib.figure import Figure

    from bronet.files import replace_bytes
    from bronet.report.curve import figure_bytes

    assert isinstance(figure, Figure)
    for kind in ("png", "pdf"):
        path = stem.with_suffix(f".{kind}")
        replace_bytes(path, figure_bytes(figure, "png" if kind == "png" else "pdf"))
        typer.echo(f"wrote    {path}")


def _number(text: str) -> int:
    if not text.isdecimal():
        raise BronetError(f"--table must be a number or all, got {text!r}")
    return int(text)
