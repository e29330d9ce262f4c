"""The same statistics class by class: where a network is robust, and where it is not."""

from collections.abc import Sequence
from typing import NamedTuple

from bronet.report.evidence import Evidence
from bronet.report.statistics import Statistics, compute_statistics
from bronet.run.rows import Row


class ClassStatistics(NamedTuple):
    """The statistics over the images whose label is this class."""

    name: str
    statistics: Statistics


def per_class(evidence: Evidence) -> list[ClassStatistics]:
    """Return the statistics of every class that has images, in the order of the labels."""
    names, eps = evidence.certificate.classes, evidence.certificate.eps
    groups: dict[int, list[Row]] = {}
    for row in evidence.rows:
        groups.setdefault(row.label, []).append(row)
    return [
        ClassStatistics(names[label] if label < len(names) else str(label), compute_statistics(rows, eps))
        for label, rows in sorted(groups.items())
    ]


def class_cells(entries: Sequence[ClassStatistics]) -> list[list[str]]:
    """Return a table of text: a header, then one line per class, accuracies in percent."""
    if not entries:
        return []
    radii = [entry.text for entry in entries[0].statistics.certified]
    header = ["class", "images", "clean", *(f"ε = {text}" for text in radii), "median radius"]
    return [header] + [
        [
            name,
            str(statistics.images),
            f"{100 * statistics.clean_accuracy:.1f}",
            *(f"{100 * entry.accuracy:.1f}" for entry in statistics.certified),
            f"{statistics.radius.median:.4f}",
        ]
        for name, statistics in entries
    ]
