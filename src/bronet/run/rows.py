"""One row per image: what a certificate says, as a CSV file from which every table and curve is recomputed.

Numbers are written so that reading gives back the same bits. A file appears whole or not at all.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bronet.errors import BronetError
from bronet.records import csv_text, read_csv, read_rows, write_rows

ADVICE = "certify again"
_FIRST = ("index", "prediction")


@dataclass(frozen=True, kw_only=True)
class Row:
    """The certificate of one image.

    `radius` is proved, in pixel space; `naive_radius` is what the literature would report, for comparison only: it
    rests on estimates. `correct` says whether the prediction is the label.
    """

    index: int
    label: int
    prediction: int
    correct: bool
    margin: float
    radius: float
    naive_radius: float

    def __post_init__(self) -> None:
        if min(self.index, self.label, self.prediction) < 0:
            found = [self.index, self.label, self.prediction]
            raise BronetError(f"index, label and prediction must be at least 0, got {found}")
        if self.correct != (self.label == self.prediction):
            raise BronetError(f"correct must be {int(self.label == self.prediction)}, got {int(self.correct)}")
        for name, value in (("radius", self.radius), ("naive_radius", self.naive_radius)):
            if math.isnan(value) or value < 0:
                raise BronetError(f"{name} must be at least 0, got {value}")


class Targeted(NamedTuple):
    """The proved distance that an image keeps from each class."""

    prediction: int
    radii: list[float]


def write_certificate_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write the rows to a CSV file, replacing it at once; a failure leaves what was there before."""
    write_rows(Row, path, rows)


def read_certificate_rows(path: Path) -> list[Row]:
    """Return the rows of a CSV file; raise `BronetError` naming file and line where one is not a row."""
    return read_rows(Row, path, advice=ADVICE if path.exists() else "run `bronet certify` first", unique="index")


def targeted_table(rows: Sequence[Row], radii: Sequence[Sequence[float]]) -> str:
    """Return targeted radii as CSV text, a line for each image: entry j is the proved distance to class j."""
    header = [*_FIRST, *(f"class_{j}" for j in range(len(radii[0])))]
    lines = ([row.index, row.prediction, *map(repr, of_row)] for row, of_row in zip(rows, radii, strict=True))
    return csv_text([header, *lines])


def read_targeted(path: Path, images: int) -> list[Targeted]:
    """Return the targeted radii of the first so many images from a CSV file."""
    header, *lines = read_csv(path, advice=ADVICE) or [[]]
    try:
        found = [Targeted(int(cells[1]), [float(cell) for cell in cells[len(_FIRST) :]]) for cells in lines]
        indices = [int(cells[0]) for cells in lines]
    except (ValueError, IndexError) as error:
        raise BronetError(f"cannot read targeted radii from {path} ({error}); {ADVICE}") from None
    if indices != list(range(images)) or any(len(line.radii) != len(header) - len(_FIRST) for line in found):
        raise BronetError(f"{path} must have one whole line for each of the {images} images, in order; {ADVICE}")
    return found
