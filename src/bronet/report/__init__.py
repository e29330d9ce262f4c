"""Reports: rows in, tables, curve and page out. Reads only the files of a run folder; needs no weights."""

from pathlib import Path
from typing import NamedTuple

from bronet.atomic import replace_bytes
from bronet.report.curve import DARK, draw_curve, figure_bytes
from bronet.report.evidence import read_evidence
from bronet.report.page import build_page
from bronet.report.table import json_summary, markdown_table, summarize

__all__ = ["ReportPaths", "write_report"]


class ReportPaths(NamedTuple):
    """The files of a report."""

    curve_png: Path
    curve_pdf: Path
    page: Path
    summary_md: Path
    summary_json: Path


def write_report(run_dir: Path | str) -> ReportPaths:
    """Write the report of a certified run into its folder `report/` and return the paths.

    Guaranteed: everything is computed before the first file is written, and each file is replaced as a whole.
    """
    run_dir = Path(run_dir)
    evidence = read_evidence(run_dir)
    summary = summarize(evidence)
    runs, eps = {evidence.name: evidence.rows}, evidence.certificate.eps
    light, dark = draw_curve(runs, eps), draw_curve(runs, eps, theme=DARK)
    png = figure_bytes(light, "png")
    folder = run_dir / "report"
    paths = ReportPaths(
        curve_png=folder / "curve.png",
        curve_pdf=folder / "curve.pdf",
        page=folder / "report.html",
        summary_md=folder / "summary.md",
        summary_json=folder / "summary.json",
    )
    contents = {
        paths.curve_png: png,
        paths.curve_pdf: figure_bytes(light, "pdf"),
        paths.summary_md: markdown_table([summary]).encode(),
        paths.summary_json: json_summary(summary).encode(),
        paths.page: build_page(summary, light=png, dark=figure_bytes(dark, "png")).encode(),
    }
    for path, content in contents.items():
        replace_bytes(path, content)
    return paths
