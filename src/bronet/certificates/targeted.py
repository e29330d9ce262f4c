"""Targeted radii as a CSV file: a line for each image, the proved distance that it keeps from each class."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bronet.errors import BronetError
from bronet.run.rows import Row

_FIRST = ("index", "prediction")


def targeted_table(rows: Sequence[Row], radii: Sequence[Sequence[float]]) -> str:
    """Return the CSV text: entry j of a line is the proved distance to class j."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*_FIRST, *(f"class_{j}" for j in range(len(radii[0])))])
    for row, of_row in zip(rows, radii, strict=True):
        table.writerow([row.index, row.prediction, *(repr(radius) for radius in of_row)])
    return text.getvalue()


class Targeted(NamedTuple):
    """A line of the file."""

    prediction: int
    radii: list[float]


def read_targeted(path: Path, images: int) -> list[Targeted]:
    """Return the lines of a file about the first so many images."""
    try:
        header, *lines = csv.reader(io.StringIO(path.read_text(encoding="utf-8")))
        found = [Targeted(int(cells[1]), [float(cell) for cell in cells[len(_FIRST) :]]) for cells in lines]
        indices = [int(cells[0]) for cells in lines]
    except (OSError, UnicodeDecodeError, csv.Error, ValueError, IndexError) as error:
        raise BronetError(f"cannot read targeted radii from {path} ({error}); certify again") from None
    if indices != list(range(images)) or any(len(line.radii) != len(header) - len(_FIRST) for line in found):
        raise BronetError(f"{path} must have one whole line for each of the {images} images, in order")
    return found
