"""Tables of runs: as cells, Markdown, JSON and CSV; and where runs differ, in images and in settings.

Accuracies are percentages with one decimal; JSON and CSV keep every digit.
An upper bound is never printed smaller than it is.
"""

import json
import math
from collections.abc import Iterable, Sequence

import numpy as np

from bronet.errors import BronetError
from bronet.files import Json
from bronet.radius import implied_radius
from bronet.recipe.schema import parse_budget
from bronet.recipe.text import dotted
from bronet.records import as_plain, csv_text
from bronet.report.evidence import Evidence
from bronet.run.folder import RunFolder
from bronet.wording import ABSENT, bound_text, number_text, percent

DISTRIBUTION = ("median radius", "variance", "skewness")
CSV_HEADER = (
    *("run", "images", "clean_accuracy", "eps", "certified_accuracy"),
    *("median_radius", "variance", "skewness", "lipschitz"),
)


def markdown_table(cells: Sequence[Sequence[str]]) -> str:
    """Return cells, the header first, as a GitHub-flavoured Markdown table."""
    header, *lines = ([cell.replace("|", "\\|") for cell in line] for line in cells)
    ruler = ["---", *["---:"] * (len(header) - 1)]
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, ruler, *lines))


def csv_table(runs: Sequence[Evidence]) -> str:
    """Return the numbers of the table with all their digits, one line per run and radius."""
    lines: list[Iterable[object]] = [CSV_HEADER]
    for run in runs:
        statistics, certificate = run.statistics, run.certificate
        for eps, accuracy in statistics.certified.items():
            numbers = map(repr, (accuracy, *statistics.radius, certificate.lipschitz))
            lines.append([run.name, statistics.images, repr(statistics.clean_accuracy), eps, *numbers])
    return csv_text(lines)


def json_summary(run: Evidence) -> str:
    """Return what the report says about one run, for programs; numbers that do not exist are null.

    The certified accuracies of the literature's way are labelled as what they are.
    """
    certificate, statistics = run.certificate, run.statistics
    median = statistics.radius.median
    content: Json = {
        "run": run.name,
        "data": certificate.data,
        "split": certificate.split,
        "images": statistics.images,
        "correct": statistics.correct,
        "clean_accuracy": statistics.clean_accuracy,
        "certified_accuracy": statistics.certified,
        "radius": {name: finite_or_none(value) for name, value in statistics.radius._asdict().items()},
        "implied": {
            "median_l1": finite_or_none(implied_radius(median, norm="l1", pixels=certificate.pixels)),
            "median_linf": finite_or_none(implied_radius(median, norm="linf", pixels=certificate.pixels)),
        },
        "naive": {
            "label": "not a proof: float32 forward, power iteration, no rounding budget",
            "certified_accuracy": run.naive().statistics.certified,
        },
        "classes": {
            name: {"images": own.images, "clean_accuracy": own.clean_accuracy, "certified_accuracy": own.certified}
            for name, own in run.by_class().items()
        },
        "attacks": [facts.plain() for facts in run.attacks],
        "lipschitz": finite_or_none(certificate.lipschitz),
        "alignment": certificate.alignment and certificate.alignment.median,
        "rounding_worst": finite_or_none(certificate.rounding.worst),
        "soundness_cost": certificate.soundness_cost.relative_median,
        "precision": certificate.precision,
        "certify_seconds": finite_or_none(certificate.seconds),
        "certify_command": certificate.command,
        "weights_sha256": certificate.weights_sha256,
        "record": run.record,
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def table_cells(runs: Sequence[Evidence]) -> list[list[str]]:
    """Return header and lines as texts, a line for each run; all runs are at the same radii."""
    table = [["run", "images", "clean", *(f"ε = {text}" for text in runs[0].eps), *DISTRIBUTION, "L before the head"]]
    for run in runs:
        statistics = run.statistics
        shares = (statistics.clean_accuracy, *statistics.certified.values())
        distribution = map(number_text, statistics.radius)
        bound = bound_text(run.certificate.lipschitz)
        table.append([run.name, str(statistics.images), *map(percent, shares), *distribution, bound])
    return table


def finite_or_none(value: float) -> float | None:
    """Return a number as JSON can hold it."""
    return value if math.isfinite(value) else None


def joined(values: Sequence[float], sign: str = "") -> str:
    """Return percents or points as one cell; what rounds to zero has no minus."""
    return " / ".join(f"{value:{sign}z.1f}" for value in values)


def difference_cells(runs: Sequence[Evidence]) -> list[list[str]]:
    """Return which share of the images is proved by all runs, by one alone and by none.

    Nothing unless all were certified on the same images in the same order.
    """
    first, *others = [(run.certificate.images_sha256, [row.index for row in run.rows]) for run in runs]
    if any(other != first for other in others):
        return []
    columns = [["proved by", "all runs", *(f"{run.name} alone" for run in runs), "none"]]
    for eps in runs[0].eps:
        radius = parse_budget(eps)
        proved = np.array([[row.correct and row.radius > radius for row in run.rows] for run in runs])
        of_image = proved.sum(axis=0)
        groups = (of_image == len(runs), *(proved & (of_image == 1)), of_image == 0)
        columns.append([f"ε = {eps}", *(percent(float(group.mean())) for group in groups)])
    return [list(line) for line in zip(*columns, strict=True)]


def setting_cells(runs: Sequence[Evidence]) -> list[list[str]]:
    """Return the settings in which the recipes differ, a column for each run; only a header if none can be told."""
    table = [["setting", *(run.name for run in runs)]]
    try:
        recipes = [dotted(as_plain(RunFolder(run.folder).recipe)) for run in runs]
    except BronetError:
        return table
    keys = dict.fromkeys(key for recipe in recipes for key in recipe)
    for key in keys:
        values = [str(recipe.get(key, ABSENT)) for recipe in recipes]
        if len(set(values)) > 1:
            table.append([key, *values])
    return table
