"""Reports: rows in, tables, curves and page out. Reads the files of a run folder, and images if any; no weights."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bronet.errors import BronetError
from bronet.files import replace_bytes
from bronet.report.evidence import Evidence, at_radii, read_evidence
from bronet.report.figures import KINDS, draw_curve, draw_margins, figure_bytes
from bronet.report.page import build_comparison, build_page, markdown_summary
from bronet.report.table import csv_table, json_summary, markdown_table, table_cells
from bronet.run.folder import PAGE, RunFolder

__all__ = ["write_comparison", "write_report"]


def write_report(run: Evidence | Path | str, folder: Path | None = None, *, data_dir: Path | None = None) -> list[Path]:
    """Write the report of a certified run into a folder, by default `report/` in its own, and return the paths.

    The page shows images if the data set is at hand (in `data_dir`, by default where data sets are). Guaranteed:
    everything is computed before the first file is written, and each file is replaced as a whole.
    """
    run = run if isinstance(run, Evidence) else read_evidence(Path(run))
    folder = folder or RunFolder(run.folder).report
    texts = {
        folder / PAGE: build_page(run, data_dir=data_dir),
        folder / "summary.md": markdown_summary(run),
        folder / "summary.json": json_summary(run),
        folder / "summary.csv": csv_table([run]),
    }
    return _write([run], folder, texts)


def write_comparison(runs: Sequence[Evidence], folder: Path, *, data_dir: Path | None = None) -> list[Path]:
    """Write page, tables and plots of several runs, and return the paths; the runs need different names.

    All are counted at the radii of all of them.
    """
    runs = at_radii(runs)
    name, count = Counter(run.name for run in runs).most_common(1)[0]
    if count > 1:
        raise BronetError(f"runs to compare must have different folder names, got {name} {count} times; rename one")
    texts = {
        folder / "comparison.html": build_comparison(runs, data_dir=data_dir),
        folder / "comparison.md": markdown_table(table_cells(runs)),
        folder / "comparison.csv": csv_table(runs),
        folder / "comparison.json": "[" + ",\n".join(json_summary(run) for run in runs) + "]\n",
    }
    return _write(runs, folder, texts)


def _write(runs: Sequence[Evidence], folder: Path, texts: dict[Path, str]) -> list[Path]:
    """Write the texts, and curve and margins of the runs in both formats."""
    figures = {
        "curve": draw_curve({run.name: run.rows for run in runs}, runs[0].eps),
        "margins": draw_margins({run.name: (run.train_rows, run.rows) for run in runs}),
    }
    contents = {path: text.encode() for path, text in texts.items()}
    for stem, figure in figures.items():
        contents |= {folder / f"{stem}.{kind}": figure_bytes(figure, kind) for kind in KINDS}
    for path, content in contents.items():
        replace_bytes(path, content)
    return list(contents)
