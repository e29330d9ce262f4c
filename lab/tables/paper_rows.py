"""The paper's numbers as data: one row of Tables 1 to 6 and 9 to 16, with the recipe that trains it, if any.

Rows quoted from the literature have no recipe. Accuracies are in percent, as printed. The tables are numbered in the
order of the paper's source.
"""

import csv
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from bronet.errors import BronetError

FILE = "paper_tables.csv"


@dataclass(frozen=True, kw_only=True)
class PaperRow:
    """One printed row. `certified` is at 36/255, 72/255 and 108/255; `others` are the table's further columns."""

    table: int
    group: str
    row: str
    recipe: str
    parameters: str
    clean: float | None
    certified: tuple[float | None, float | None, float | None]
    others: dict[str, float]


def paper_tables() -> tuple[int, ...]:
    """Return the numbers of the tables that have rows, in order."""
    return tuple(dict.fromkeys(row.table for row in _rows()))


def paper_rows(table: int | None = None) -> tuple[PaperRow, ...]:
    """Return the rows of one table, or of all."""
    if table is None:
        return _rows()
    if table not in paper_tables():
        raise BronetError(f"table must be one of {', '.join(map(str, paper_tables()))}, got {table}")
    return tuple(row for row in _rows() if row.table == table)


@lru_cache(maxsize=1)
def _rows() -> tuple[PaperRow, ...]:
    text = resources.files("lab.tables").joinpath(FILE).read_text(encoding="utf-8")
    return tuple(_row(cells) for cells in csv.DictReader(text.splitlines()))


def _row(cells: dict[str, str]) -> PaperRow:
    others = (entry.split("=") for entry in cells["others"].split(";") if entry)
    return PaperRow(
        table=int(cells["table"]),
        group=cells["group"],
        row=cells["row"],
        recipe=cells["recipe"],
        parameters=cells["parameters"],
        clean=_number(cells["clean"]),
        certified=(_number(cells["certified_36"]), _number(cells["certified_72"]), _number(cells["certified_108"])),
        others={name: float(value) for name, value in others},
    )


def _number(text: str) -> float | None:
    return float(text) if text else None
