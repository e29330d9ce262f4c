"""One row per attacked image, and the facts of the attack: files that a stopped attack goes on from.

Rows are written in whole batches, each time the whole file at once. Numbers come back with the same bits.
"""

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from bronet.errors import BronetError
from bronet.files import Json, read_object, replace_text

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

    @property
    def refutes(self) -> bool:
        """Whether the row refutes a certificate: another class at an l2 distance below the certified radius."""
        return self.found != self.prediction and self.l2 < self.radius


HEADER = tuple(field.name for field in fields(AttackRow))


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
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(HEADER)
    for row in rows:
        numbers = (repr(float(number)) for number in (row.l2, row.linf, row.radius))
        table.writerow([row.index, row.label, row.prediction, row.found, int(row.robust), *numbers])
    replace_text(path, text.getvalue())


def read_attack_rows(path: Path) -> list[AttackRow]:
    """Return the rows of a CSV file; none if there is no such file."""
    if not path.exists():
        return []
    try:
        header, *lines = csv.reader(io.StringIO(path.read_text(encoding="utf-8")))
        if tuple(header) != HEADER:
            raise ValueError(f"its header must be {','.join(HEADER)}")
        rows = [_parsed(cells) for cells in lines]
        if len({row.index for row in rows}) < len(rows):
            raise ValueError("an image has two rows")
    except (OSError, ValueError, csv.Error) as error:
        raise BronetError(f"cannot go on from {path}: {error}; {ADVICE}") from None
    return rows


def _parsed(cells: list[str]) -> AttackRow:
    if len(cells) != len(HEADER):
        raise ValueError(f"a line must have {len(HEADER)} values, got {len(cells)}")
    index, label, prediction, found, robust = (int(cell) for cell in cells[:5])
    l2, linf, radius = (float(cell) for cell in cells[5:])
    if min(index, label, prediction, found) < 0 or robust != int(label == prediction == found):
        raise ValueError(f"a line must have numbers of at least 0 that agree with one another, got {cells[:5]}")
    if any(math.isnan(number) or number < 0 for number in (l2, linf, radius)):
        raise ValueError(f"distances and radius must be at least 0, got {cells[5:]}")
    return AttackRow(
        index=index,
        label=label,
        prediction=prediction,
        found=found,
        robust=bool(robust),
        l2=l2,
        linf=linf,
        radius=radius,
    )


def read_facts(path: Path) -> Json:
    """Return the facts of an attack; empty if there is no such file."""
    return read_object(path, advice=ADVICE) if path.exists() else {}


def write_facts(path: Path, facts: Json) -> None:
    """Write the facts, replacing earlier ones."""
    replace_text(path, json.dumps(facts, indent=2) + "\n")
