"""One row per image: what a certificate says, as a CSV file from which every table and curve is recomputed.

Numbers are written so that reading gives back the same bits. A file appears whole or not at all.
"""

import csv
import io
import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from bronet.errors import BronetError
from bronet.files import replace_text


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


HEADER = tuple(field.name for field in fields(Row))


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write the rows to a CSV file, replacing it at once; a failure leaves what was there before."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(HEADER)
    for row in rows:
        index, label, prediction, correct, *numbers = astuple(row)
        table.writerow([index, label, prediction, int(correct), *(repr(float(number)) for number in numbers)])
    replace_text(path, text.getvalue())


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a CSV file; raise `BronetError` naming file and line where one is not a row."""
    try:
        lines = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"))))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BronetError(f"cannot read rows from {path}: {error}; run `bronet certify` first") from None
    if not lines or tuple(lines[0]) != HEADER:
        found = ",".join(lines[0]) if lines else "an empty file"
        raise BronetError(f"{path}, line 1: header must be {','.join(HEADER)}, got {found}")
    rows = [_parse(path, number, cells) for number, cells in enumerate(lines[1:], start=2)]
    seen: set[int] = set()
    for number, row in enumerate(rows, start=2):
        if row.index in seen:
            raise BronetError(f"{path}, line {number}: index must be unique, got {row.index} again")
        seen.add(row.index)
    return rows


def _parse(path: Path, line: int, cells: list[str]) -> Row:
    """Return the row of one line, checked against itself."""
    if len(cells) != len(HEADER):
        raise BronetError(f"{path}, line {line}: must have {len(HEADER)} values, got {len(cells)}")
    try:
        index, label, prediction, correct = (int(cell) for cell in cells[:4])
        margin, radius, naive_radius = (float(cell) for cell in cells[4:])
    except ValueError as error:
        raise BronetError(f"{path}, line {line}: {error}; certify again") from None
    if min(index, label, prediction) < 0:
        raise BronetError(f"{path}, line {line}: index, label and prediction must be at least 0, got {cells[:3]}")
    if correct != int(label == prediction):
        raise BronetError(f"{path}, line {line}: correct must be {int(label == prediction)}, got {correct}")
    for name, value in (("radius", radius), ("naive_radius", naive_radius)):
        if math.isnan(value) or value < 0:
            raise BronetError(f"{path}, line {line}: {name} must be at least 0, got {value}")
    return Row(
        index=index,
        label=label,
        prediction=prediction,
        correct=bool(correct),
        margin=margin,
        radius=radius,
        naive_radius=naive_radius,
    )
