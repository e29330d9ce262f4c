"""What a report may look at, the files of one run folder, read and checked; and what it counts in their rows.

Nothing is recomputed from weights or images here. `record.json` and `log.jsonl` are optional, because weights may
come from elsewhere; the recipe and the two files of the certificate are not.

Accuracies are over all images; median, variance and skewness of the radius (Table 6) over the correctly classified
ones, as in the paper. Variance and skewness are those of the sample as a population, without a correction for its size.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from bronet.errors import BronetError
from bronet.files import Json, read_object
from bronet.radius import certified_at
from bronet.recipe.schema import parse_budget
from bronet.run.attack_rows import AttackFacts, AttackRow, check_attack, read_attack, read_attack_rows
from bronet.run.certificate import CertificateFile, Row, check_rows, read_certificate, read_certificate_rows
from bronet.run.folder import RunFolder

ADVICE = "train and certify this run first"
TEST_IMAGES = {"digits": 500, "cifar10": 10_000, "cifar100": 10_000, "tiny-imagenet": 10_000, "imagenet": 50_000}
"""Test images of the known data sets."""


class RadiusDistribution(NamedTuple):
    """Table 6, over correctly classified images; NaN where undefined (no image, equal or infinite radii)."""

    median: float
    variance: float
    skewness: float


class Statistics(NamedTuple):
    """Everything a table prints about a set of rows.

    `certified` is the share of images proved correct throughout their ball, by its radius as the user wrote it.
    """

    images: int
    correct: int
    clean_accuracy: float
    certified: dict[str, float]
    radius: RadiusDistribution

    @property
    def percents(self) -> list[float]:
        """The accuracies as the paper's tables list them: clean, then each radius, in percent."""
        return [100 * share for share in (self.clean_accuracy, *self.certified.values())]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One run, as its folder tells it; what has no file is empty.

    `folder` is its place as it was given, `rows` are those of the split that was asked for, `train_rows` those of the
    training images, for histograms. `eps` are the radii to count at: those of the certificate, or of all runs compared.
    `closest` is the nearest other answer that an attack found of an image, by the image's index.
    """

    name: str
    folder: Path
    rows: tuple[Row, ...]
    certificate: CertificateFile
    eps: tuple[str, ...]
    recipe: str
    record: Json
    log: tuple[Json, ...]
    train_rows: tuple[Row, ...] = ()
    attacks: tuple[AttackFacts, ...] = ()
    closest: Mapping[int, AttackRow] = field(default_factory=dict)

    @property
    def images(self) -> str:
        """Which images the rows are of, in words: all of a split, or how few."""
        certificate, count = self.certificate, f"{len(self.rows):,}"
        if certificate.split == "sample":
            return f"a sample of {count} test images"
        limited = "--limit" in shlex.split(certificate.command)
        if limited or (certificate.split == "test" and len(self.rows) < TEST_IMAGES.get(certificate.data, 0)):
            return f"the first {count} {certificate.split} images only"
        return f"all {count} {certificate.split} images"

    def class_name(self, label: int) -> str:
        """Return the name of a class; its number where it has none."""
        names = self.certificate.classes
        return names[label] if label < len(names) else str(label)

    @property
    def training_seconds(self) -> float | None:
        """How long the record says that training took; None of a record that was lost or edited."""
        seconds = self.record.get("seconds")
        return seconds if isinstance(seconds, int | float) and 0 <= seconds < math.inf else None

    def naive(self) -> "Evidence":
        """Return the same with the radii of the literature's way in place of the proved ones: not a proof."""
        return replace(self, rows=tuple(replace(row, radius=row.naive_radius) for row in self.rows))

    @cached_property
    def statistics(self) -> Statistics:
        """Accuracies at the radii of `eps`, and the distribution of the radius."""
        return compute_statistics(self.rows, self.eps)

    def by_class(self) -> dict[str, Statistics]:
        """Return the statistics of the images of every class that has any, by its name, in the order of the labels."""
        groups: dict[int, list[Row]] = {}
        for row in self.rows:
            groups.setdefault(row.label, []).append(row)
        return {self.class_name(label): compute_statistics(rows, self.eps) for label, rows in sorted(groups.items())}


def read_evidence(run: RunFolder | Path, *, split: str = "") -> Evidence:
    """Return the evidence of a run folder; raise `BronetError` where files are missing or contradict each other.

    Without a `split` it is that of the test images: all of them or, where only those were certified, the sample.
    """
    run = run if isinstance(run, RunFolder) else RunFolder(run)
    files = run.certificate(split or run.certified_split())
    certificate = read_certificate(files.facts)
    check_rows(files.rows, certificate)
    rows = read_certificate_rows(files.rows)
    if len(rows) != certificate.images:
        raise BronetError(
            f"{files.rows} must have one row for each of the {certificate.images} images of {files.facts.name}, "
            f"got {len(rows)}; certify again"
        )
    attacks, closest = [], dict[int, AttackRow]()
    for attack in run.attacks():
        told = read_attack(attack.facts)
        if told is None:
            continue
        check_attack(attack, told, pixels=certificate.pixels, network=certificate.network)
        attacks.append(told)
        for row in read_attack_rows(attack.rows) if told.split == certificate.split else ():
            before = closest.get(row.index)
            if row.found != row.prediction and (before is None or row.l2 < before.l2):
                closest[row.index] = row
    log = _read_text(run.log).splitlines() if run.log.exists() else []
    train = run.certificate("train").rows
    return Evidence(
        name=run.path.resolve().name,
        folder=run.path,
        rows=tuple(rows),
        certificate=certificate,
        eps=certificate.eps,
        recipe=_read_text(run.recipe_file),
        record=run.read_record(),
        log=tuple(read_object(run.log, text=line, advice=ADVICE) for line in log if line.strip()),
        train_rows=tuple(read_certificate_rows(train)) if train.exists() else (),
        attacks=tuple(attacks),
        closest=closest,
    )


def at_radii(runs: Sequence[Evidence], eps: Sequence[str] = ()) -> list[Evidence]:
    """Return the runs, each at these radii or at those of all: the rows hold every radius."""
    by_value = {parse_budget(text, name="eps"): text for text in eps or (text for run in runs for text in run.eps)}
    return [replace(run, eps=tuple(by_value[value] for value in sorted(by_value))) for run in runs]


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BronetError(f"cannot read {path}: {error}; {ADVICE}") from None


def compute_statistics(rows: Sequence[Row], eps: Sequence[str]) -> Statistics:
    """Return the statistics of at least one row, certified accuracies in the order of `eps` ("36/255", ...)."""
    if not rows:
        raise BronetError("rows must hold at least one image, got none; certify first")
    correct = sum(row.correct for row in rows)
    return Statistics(
        images=len(rows),
        correct=correct,
        clean_accuracy=correct / len(rows),
        certified={text: certified_accuracy(rows, parse_budget(text, name="eps")) for text in eps},
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
