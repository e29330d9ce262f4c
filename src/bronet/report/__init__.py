"""Reports: rows in, tables, curves and page out. Reads only the files of a run folder; needs no weights."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bronet.errors import BronetError
from bronet.files import replace_bytes
from bronet.recipe.schema import parse_budget
from bronet.report.evidence import Evidence, read_evidence
from bronet.report.figures import DARK, KINDS, draw_curve, draw_margins, figure_bytes
from bronet.report.page import build_page, markdown_summary
from bronet.report.table import csv_table, json_summary, markdown_table, table_cells
from bronet.run.folder import ReportFiles, RunFolder

__all__ = ["write_comparison", "write_report", "write_summary"]


def write_report(run: RunFolder | Path | str, *, folder: Path | None = None) -> ReportFiles:
    """Write the report of a certified run into a folder, by default `report/` in its own, and return the paths."""
    run = run if isinstance(run, RunFolder) else RunFolder(Path(run))
    return write_summary(read_evidence(run), folder or run.report)


def write_summary(run: Evidence, folder: Path) -> ReportFiles:
    """Write the report of a run whose evidence is read already, and return the paths.

    Guaranteed: everything is computed before the first file is written, and each file is replaced as a whole.
    """
    paths, eps = ReportFiles.of(folder), run.eps
    pictures = _pictures([run], eps, folder)
    dark = draw_curve({run.name: run.rows}, eps, theme=DARK)
    page = build_page(run, light=pictures[paths.curve_png], dark=figure_bytes(dark, "png"))
    texts = {
        paths.summary_md: markdown_summary(run),
        paths.summary_json: json_summary(run),
        paths.summary_csv: csv_table([run]),
        paths.page: page,
    }
    _write(pictures, texts)
    return paths


def write_comparison(runs: Sequence[Evidence], folder: Path) -> list[Path]:
    """Write tables and plots of several runs, and return the paths; the runs need different names."""
    name, count = Counter(run.name for run in runs).most_common(1)[0]
    if count > 1:
        raise BronetError(f"runs to compare must have different folder names, got {name} {count} times; rename one")
    eps = sorted({text for run in runs for text in run.eps}, key=parse_budget)
    texts = {
        folder / "comparison.md": markdown_table(table_cells(runs)),
        folder / "comparison.csv": csv_table(runs),
        folder / "comparison.json": "[" + ",\n".join(json_summary(run) for run in runs) + "]\n",
    }
    return _write(_pictures(runs, eps, folder), texts)


def _pictures(runs: Sequence[Evidence], eps: Sequence[str], folder: Path) -> dict[Path, bytes]:
    """Return curve and margins of the runs as files in both formats."""
    figures = {
        "curve": draw_curve({run.name: run.rows for run in runs}, eps),
        "margins": draw_margins({run.name: (run.train_rows, run.rows) for run in runs}),
    }
    return {folder / f"{stem}.{kind}": figure_bytes(figure, kind) for stem, figure in figures.items() for kind in KINDS}


def _write(pictures: dict[Path, bytes], texts: dict[Path, str]) -> list[Path]:
    contents = {path: text.encode() for path, text in texts.items()} | pictures
    for path, content in contents.items():
        replace_bytes(path, content)
    return list(contents)
