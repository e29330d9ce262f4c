"""Statistics of rows: clean and certified accuracy (all tables), and the distribution of the radius (Table 6).

Accuracies are over all images; median, variance and skewness of the radius over the correctly classified ones, as in
the paper. Variance and skewness are those of the sample as a population, without a correction for its size.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from bronet.errors import BronetError
from bronet.radius import certified_at
from bronet.recipe.schema import parse_budget
from bronet.report.evidence import Evidence
from bronet.run.rows import Row


class CertifiedAccuracy(NamedTuple):
    """The share of images proved correct throughout their ball; `text` is the radius as the user wrote it."""

    text: str
    eps: float
    accuracy: float


class RadiusDistribution(NamedTuple):
    """Table 6, over correctly classified images; NaN where undefined (no image, equal or infinite radii)."""

    median: float
    variance: float
    skewness: float


class Statistics(NamedTuple):
    """Everything a table prints about a set of rows."""

    images: int
    correct: int
    clean_accuracy: float
    certified: tuple[CertifiedAccuracy, ...]
    radius: RadiusDistribution

    @property
    def percents(self) -> list[float]:
        """The accuracies as the paper's tables list them: clean, then each radius, in percent."""
        return [100 * share for share in (self.clean_accuracy, *(entry.accuracy for entry in self.certified))]


def compute_statistics(rows: Sequence[Row], eps: Sequence[str]) -> Statistics:
    """Return the statistics of at least one row, certified accuracies in the order of `eps` ("36/255", ...)."""
    if not rows:
        raise BronetError("rows must hold at least one image, got none; certify first")
    correct = sum(row.correct for row in rows)
    budgets = [(text, parse_budget(text, name="eps")) for text in eps]
    return Statistics(
        images=len(rows),
        correct=correct,
        clean_accuracy=correct / len(rows),
        certified=tuple(CertifiedAccuracy(text, value, certified_accuracy(rows, value)) for text, value in budgets),
        radius=radius_distribution(rows),
    )


def certified_accuracy(rows: Sequence[Row], eps: float) -> float:
    """Return the share of rows certified at eps, as `bronet.radius.certified_at` defines it."""
    radius = torch.tensor([row.radius for row in rows], dtype=torch.float64)
    correct = torch.tensor([row.correct for row in rows])
    return int(certified_at(radius, correct, eps).sum()) / len(rows)


def radius_distribution(rows: Sequence[Row]) -> RadiusDistribution:
    """Return median, variance and skewness of the radius over the correctly classified rows."""
    radii = np.array([row.radius for row in rows if row.correct])
    if radii.size == 0:
        return RadiusDistribution(np.nan, np.nan, np.nan)
    median = float(np.median(radii))
    if not np.isfinite(radii).all():
        return RadiusDistribution(median, np.nan, np.nan)
    centred = radii - radii.mean()
    variance = float((centred**2).mean())
    # Equal radii differ from their mean by rounding alone, and have no skewness.
    spread = np.sqrt(variance) > radii.size * np.finfo(np.float64).eps * radii.max()
    skewness = float((centred**3).mean() / variance**1.5) if spread else np.nan
    return RadiusDistribution(median, variance, skewness)


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
