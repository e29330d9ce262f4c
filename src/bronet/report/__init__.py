"""Reports: rows in, tables, curves and page out. Reads only the files of a run folder; needs no weights."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bronet.errors import BronetError
from bronet.files import replace_bytes
from bronet.recipe.schema import parse_budget
from bronet.report.evidence import read_evidence
from bronet.report.figures import DARK, draw_curve, draw_margins, figure_bytes
from bronet.report.page import build_page, markdown_summary
from bronet.report.table import Summary, csv_table, json_summary, markdown_table, summarize
from bronet.run.folder import ReportFiles, RunFolder

__all__ = ["write_comparison", "write_report", "write_summary"]


def write_report(run: RunFolder | Path | str, *, folder: Path | None = None) -> ReportFiles:
    """Write the report of a certified run into a folder, by default `report/` in its own, and return the paths."""
    run = run if isinstance(run, RunFolder) else RunFolder(Path(run))
    return write_summary(summarize(read_evidence(run)), folder or run.report)


def write_summary(summary: Summary, folder: Path) -> ReportFiles:
    """Write the report of a run that is summarized already, and return the paths.

    Guaranteed: everything is computed before the first file is written, and each file is replaced as a whole.
    """
    evidence = summary.evidence
    runs, eps = {evidence.name: evidence.rows}, evidence.certificate.eps
    light, dark = draw_curve(runs, eps), draw_curve(runs, eps, theme=DARK)
    margins = draw_margins({evidence.name: (evidence.train_rows, evidence.rows)})
    png = figure_bytes(light, "png")
    paths = ReportFiles.of(folder)
    contents = {
        paths.curve_png: png,
        paths.curve_pdf: figure_bytes(light, "pdf"),
        paths.margins_png: figure_bytes(margins, "png"),
        paths.margins_pdf: figure_bytes(margins, "pdf"),
        paths.summary_md: markdown_summary(summary).encode(),
        paths.summary_json: json_summary(summary).encode(),
        paths.summary_csv: csv_table([summary]).encode(),
        paths.page: build_page(summary, light=png, dark=figure_bytes(dark, "png")).encode(),
    }
    for path, content in contents.items():
        replace_bytes(path, content)
    return paths


def write_comparison(summaries: Sequence[Summary], folder: Path) -> list[Path]:
    """Write tables and plots of several runs, and return the paths; the runs need different names."""
    name, count = Counter(summary.evidence.name for summary in summaries).most_common(1)[0]
    if count > 1:
        raise BronetError(f"runs to compare must have different folder names, got {name} {count} times; rename one")
    radii = {entry.text for summary in summaries for entry in summary.statistics.certified}
    evidence = [summary.evidence for summary in summaries]
    curve = draw_curve({run.name: run.rows for run in evidence}, sorted(radii, key=parse_budget))
    margins = draw_margins({run.name: (run.train_rows, run.rows) for run in evidence})
    contents = {
        folder / "comparison.md": markdown_table(summaries).encode(),
        folder / "comparison.csv": csv_table(summaries).encode(),
        folder / "comparison.json": ("[" + ",\n".join(json_summary(summary) for summary in summaries) + "]\n").encode(),
    }
    for stem, figure in (("curve", curve), ("margins", margins)):
        contents[folder / f"{stem}.png"] = figure_bytes(figure, "png")
        contents[folder / f"{stem}.pdf"] = figure_bytes(figure, "pdf")
    for path, content in contents.items():
        replace_bytes(path, content)
    return list(contents)
