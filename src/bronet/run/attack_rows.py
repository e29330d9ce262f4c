"""One row per attacked image, and the facts of the attack: files that a stopped attack goes on from.

Rows are written in whole batches, each time the whole file at once. Numbers come back with the same bits.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bronet.errors import BronetError
from bronet.files import Json, read_object, replace_text
from bronet.records import read_rows, write_rows

ADVICE = "attack again with --overwrite"


@dataclass(frozen=True, kw_only=True)
class AttackRow:
    """What an attack found at one image, as the float64 program judges it.

    `found` is the class at the attack's point, at most `l2` and `linf` away; `robust` says that the image is correct
    and stayed so. `radius` is the certified l2 radius of the prediction.
    """

    index: int
    label: int
    prediction: int
    found: int
    robust: bool
    l2: float
    linf: float
    radius: float

    def __post_init__(self) -> None:
        if min(self.index, self.label, self.prediction, self.found) < 0:
            found = [self.index, self.label, self.prediction, self.found]
            raise BronetError(f"index, label, prediction and found must be at least 0, got {found}")
        if self.robust != (self.label == self.prediction == self.found):
            raise BronetError(f"robust must be {int(not self.robust)}, got {int(self.robust)}")
        for name, value in (("l2", self.l2), ("linf", self.linf), ("radius", self.radius)):
            if math.isnan(value) or value < 0:
                raise BronetError(f"{name} must be at least 0, got {value}")

    @property
    def refutes(self) -> bool:
        """Whether the row refutes a certificate: another class at an l2 distance below the certified radius."""
        return self.found != self.prediction and self.l2 < self.radius


@dataclass(frozen=True, kw_only=True)
class AttackCounts:
    """How many of the attacked images are what; `certified` is None where it was not counted."""

    images: int
    correct: int
    robust: int
    refuted: int
    certified: int | None

    def facts(self) -> dict[str, float]:
        """Return the counts as the facts of an attack state them."""
        facts = {
            "images": self.images,
            "clean_accuracy": self.correct / self.images,
            "robust_accuracy": self.robust / self.images,
            "certified_broken": self.refuted,
        }
        if self.certified is not None:
            facts["certified_accuracy"] = self.certified / self.images
        return facts


def count_rows(rows: Sequence[AttackRow], *, certifies: Callable[[float], bool] | None) -> AttackCounts:
    """Count the rows; `certifies` says whether a certified l2 radius covers the attack's ball, in whatever norm."""
    correct = [row for row in rows if row.prediction == row.label]
    return AttackCounts(
        images=len(rows),
        correct=len(correct),
        robust=sum(row.robust for row in rows),
        refuted=sum(row.refutes for row in rows),
        certified=None if certifies is None else sum(certifies(row.radius) for row in correct),
    )


def write_attack_rows(path: Path, rows: Iterable[AttackRow]) -> None:
    """Write the rows to a CSV file, replacing it at once."""
    write_rows(AttackRow, path, rows)


def read_attack_rows(path: Path) -> list[AttackRow]:
    """Return the rows of a CSV file; none if there is no such file."""
    return read_rows(AttackRow, path, advice=ADVICE, unique="index") if path.exists() else []


def read_facts(path: Path) -> Json:
    """Return the facts of an attack; empty if there is no such file."""
    return read_object(path, advice=ADVICE) if path.exists() else {}


def write_facts(path: Path, facts: Json) -> None:
    """Write the facts, replacing earlier ones."""
    replace_text(path, json.dumps(facts, indent=2) + "\n")
