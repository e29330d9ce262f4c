"""Tables of runs: for the terminal, as Markdown, JSON and CSV; one line per run.

All four are drawn from the same cells. Accuracies are percentages with one decimal; JSON and CSV keep every digit.
An upper bound is never printed smaller than it is.
"""

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from bronet.files import Json
from bronet.radius import implied_radius
from bronet.recipe.schema import parse_budget
from bronet.report.evidence import Evidence
from bronet.report.statistics import Statistics, compute_statistics, per_class
from bronet.wording import bound_text

ABSENT = "–"
DISTRIBUTION = ("median radius", "variance", "skewness")
CSV_HEADER = (
    *("run", "images", "clean_accuracy", "eps", "certified_accuracy"),
    *("median_radius", "variance", "skewness", "lipschitz"),
)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The line of one run."""

    evidence: Evidence
    statistics: Statistics


def summarize(evidence: Evidence) -> Summary:
    """Return the statistics of a run next to its evidence, at the radii that it was certified for."""
    return summarize_all([evidence])[0]


def summarize_all(runs: Sequence[Evidence]) -> list[Summary]:
    """Return the summaries of runs, each at the radii of all: the rows hold them, whichever a run was certified for."""
    by_value = {parse_budget(text, name="eps"): text for evidence in runs for text in evidence.certificate.eps}
    radii = runs[0].certificate.eps if len(runs) == 1 else tuple(by_value.values())
    return [Summary(evidence=evidence, statistics=compute_statistics(evidence.rows, radii)) for evidence in runs]


def terminal_table(summaries: Sequence[Summary]) -> Table:
    """Return a table for a rich console."""
    table = Table(title="Certified accuracy: a proof for every image that counts", title_justify="left")
    header, *lines = _cells(summaries)
    for number, heading in enumerate(header):
        table.add_column(heading, justify="left" if number == 0 else "right", no_wrap=number > 0)
    for line in lines:
        table.add_row(*(Text(cell) for cell in line))
    return table


def markdown_table(summaries: Sequence[Summary]) -> str:
    """Return a GitHub-flavoured Markdown table."""
    header, *lines = ([cell.replace("|", "\\|") for cell in line] for line in _cells(summaries))
    ruler = ["---", *["---:"] * (len(header) - 1)]
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, ruler, *lines))


def csv_table(summaries: Sequence[Summary]) -> str:
    """Return the numbers of the table with all their digits, one line per run and radius."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    for summary in summaries:
        statistics, certificate = summary.statistics, summary.evidence.certificate
        for entry in statistics.certified:
            after = (entry.accuracy, *statistics.radius, certificate.lipschitz)
            clean, *numbers = (repr(number) for number in (statistics.clean_accuracy, *after))
            writer.writerow([summary.evidence.name, statistics.images, clean, entry.text, *numbers])
    return text.getvalue()


def json_summary(summary: Summary) -> str:
    """Return what the report says about one run, for programs; numbers that do not exist are null."""
    certificate, statistics = summary.evidence.certificate, summary.statistics
    content: Json = {
        "run": summary.evidence.name,
        "data": certificate.data,
        "split": certificate.split,
        "images": statistics.images,
        "correct": statistics.correct,
        "clean_accuracy": statistics.clean_accuracy,
        "certified_accuracy": {entry.text: entry.accuracy for entry in statistics.certified},
        "radius": {name: _finite(value) for name, value in statistics.radius._asdict().items()},
        "implied": _implied(summary),
        "naive": _naive(summary),
        "classes": {
            name: {"images": own.images, "clean_accuracy": own.clean_accuracy}
            | {"certified_accuracy": {entry.text: entry.accuracy for entry in own.certified}}
            for name, own in per_class(summary.evidence)
        },
        "attacks": [facts.plain() for facts in summary.evidence.attacks],
        "lipschitz": _finite(certificate.lipschitz),
        "rounding_worst": _finite(certificate.rounding.worst),
        "soundness_cost": certificate.soundness_cost.relative_median,
        "precision": certificate.precision,
        "certify_seconds": _finite(certificate.seconds),
        "certify_command": certificate.command,
        "weights_sha256": certificate.weights_sha256,
        "record": summary.evidence.record,
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def paper_line(statistics: Statistics) -> str:
    """Return the accuracies as the paper's tables list them, in one line."""
    return joined(statistics.percents)


def _implied(summary: Summary) -> Json:
    """Return the medians of the radii in other norms that the l2 radii imply; null where there is none."""
    median, pixels = summary.statistics.radius.median, summary.evidence.certificate.pixels
    if not math.isfinite(median):
        return {"median_l1": None, "median_linf": None}
    return {
        "median_l1": implied_radius(median, norm="l1", pixels=pixels),
        "median_linf": implied_radius(median, norm="linf", pixels=pixels),
    }


def _naive(summary: Summary) -> Json:
    """Return the certified accuracies of the literature's way, labelled."""
    evidence = summary.evidence.naive()
    statistics = compute_statistics(evidence.rows, evidence.certificate.eps)
    return {
        "label": "not a proof: float32 forward, power iteration, no rounding budget",
        "certified_accuracy": {entry.text: entry.accuracy for entry in statistics.certified},
    }


def percent(share: float) -> str:
    """Return a share as a percentage with one decimal."""
    return f"{100 * share:.1f} %"


def number_text(value: float) -> str:
    """Return a measured number with four decimals, or a dash where it does not exist."""
    return ABSENT if math.isnan(value) else f"{value:.4f}"


def _cells(summaries: Sequence[Summary]) -> list[list[str]]:
    """Return header and lines as texts; the radii of all runs share the columns, in increasing order."""
    radii = sorted({entry.text for summary in summaries for entry in summary.statistics.certified}, key=parse_budget)
    certified_at = (f"ε = {text}" for text in radii)
    table = [["run", "images", "clean", *certified_at, *DISTRIBUTION, "L before the head"]]
    for summary in summaries:
        statistics = summary.statistics
        certified = {entry.text: percent(entry.accuracy) for entry in statistics.certified}
        table.append(
            [
                summary.evidence.name,
                str(statistics.images),
                percent(statistics.clean_accuracy),
                *(certified.get(text, ABSENT) for text in radii),
                *(number_text(value) for value in statistics.radius),
                bound_text(summary.evidence.certificate.lipschitz),
            ]
        )
    return table


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def aligned(cells: Sequence[Sequence[str]]) -> str:
    """Return cells, the header first, as a Markdown table whose columns line up in a terminal too."""
    texts = [[cell.replace("|", "\\|") for cell in line] for line in cells]
    widths = [max(len(line[column]) for line in texts) for column in range(len(texts[0]))]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in texts]
    ruler = ["-" * max(width, 3) for width in widths]
    return "".join(f"| {' | '.join(line)} |\n" for line in (padded[0], ruler, *padded[1:]))


def joined(values: Sequence[float], sign: str = "") -> str:
    """Return percents or points as one cell; what rounds to zero has no minus."""
    return " / ".join(f"{value:{sign}z.1f}" for value in values)


def apart(mine: Sequence[float], others: Sequence[float]) -> str:
    """Return mine minus others as one cell, with signs; empty where one side has fewer numbers."""
    if len(mine) != len(others):
        return ""
    return joined([own - other for own, other in zip(mine, others, strict=True)], "+")
