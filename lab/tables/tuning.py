"""The log of tuning runs: one line per run, judged on held-out training images, never on the test set.

Certified shares are estimates with the constants that training uses, and no certificates. `lab.tables.tuning_rows`
collects the lines from run folders; a person writes the verdicts.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from bronet.errors import BronetError
from bronet.report.aligned import aligned, joined
from bronet.report.table import ABSENT
from lab.tables.paper import NOT_RUN

FILE = Path("speedrun") / "tuning.csv"
"""Where the log lies below the folder of results."""
COMMIT_DIGITS = 7


@dataclass(frozen=True, kw_only=True)
class TuningRow:
    """One run: what differs from the run named in `against`, shares of the held-out images, and what came of it."""

    run: str
    changed: str
    against: str
    network: str
    epochs: int
    steps: int | None
    seconds: float
    images_held_out: int
    clean: float
    certified_36: float
    certified_72: float
    certified_108: float
    train_accuracy: float
    commit: str
    device: str
    verdict: str

    @property
    def shares(self) -> tuple[float, float, float, float]:
        """Clean accuracy, then certified at the three budgets."""
        return self.clean, self.certified_36, self.certified_72, self.certified_108

    @property
    def percents(self) -> list[float]:
        """The shares in percent."""
        return [100 * share for share in self.shares]


_TYPES = get_type_hints(TuningRow)
SHARES = ("clean", "certified_36", "certified_72", "certified_108", "train_accuracy")


def read_tuning(path: Path) -> list[TuningRow]:
    """Return the rows of the log, none if there is no such file; raise where it contradicts itself."""
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:  # spreadsheets put a mark first
            header, *lines = [cells for cells in csv.reader(file) if cells]
        if header != list(_TYPES):
            raise ValueError(f"its columns must be {', '.join(_TYPES)}, got {', '.join(header)}")
        rows = [_row(cells) for cells in lines]
    except (OSError, ValueError, csv.Error) as error:
        raise BronetError(f"rows must be a tuning.csv of `python -m lab tuning`, got {path} ({error})") from None
    names = [row.run for row in rows]
    for row in rows:
        if names.count(row.run) > 1:
            raise BronetError(f"{path} must name every run once, got {row.run} {names.count(row.run)} times")
        if row.against and row.against not in names:
            raise BronetError(f"{path}: {row.run} is compared with {row.against}, which has no line")
    named = {row.run: row for row in rows}
    for row in rows:
        if not _first_of(row, named):
            raise BronetError(f"{path}: {row.run} is compared with {row.against}, and that in the end with {row.run}")
    return rows


def tuning_table(rows: Sequence[TuningRow]) -> str:
    """Return the log as Markdown: shares in percent, and the difference in points to the run of `against`.

    Runs that lead back to the same first run share a table, with that run's network and length below it; seconds and
    training accuracy are in the file only.
    """
    if not rows:
        return f"Tuning runs: {NOT_RUN}.\n"
    named = {row.run: row for row in rows}
    tables: dict[tuple[str, int], list[TuningRow]] = {}
    for row in rows:
        tables.setdefault((_first_of(row, named), row.images_held_out), []).append(row)
    return "\n".join(_table(together, named) for together in tables.values())


def _first_of(row: TuningRow, named: Mapping[str, TuningRow]) -> str:
    """Return the run at which the chain of comparisons from this one ends; nothing where it ends nowhere."""
    seen = {row.run}
    while row.against in named:
        row = named[row.against]
        if row.run in seen:
            return ""
        seen.add(row.run)
    return row.run


def _table(rows: Sequence[TuningRow], named: Mapping[str, TuningRow]) -> str:
    cells = [["run", "changed", "clean / 36 / 72 / 108", "against", "difference", "verdict"]]
    for row in rows:
        base = named.get(row.against)
        apart = [100 * (mine - other) for mine, other in zip(row.shares, base.shares, strict=True)] if base else []
        cells.append(
            [
                f"`{row.run}`",
                row.changed or ABSENT,
                joined(row.percents),
                f"`{row.against}`" if base else ABSENT,
                joined(apart, "+") or ABSENT,
                row.verdict or ABSENT,
            ]
        )
    alike = len({_size(row) for row in rows}) == 1
    size = f"All runs: {_size(rows[0])}." if alike else f"`{rows[0].run}`: {_size(rows[0])}."
    return f"{aligned(cells)}\n{size} {remark_on(rows)}\n"


def _size(row: TuningRow) -> str:
    steps = "" if row.steps is None else f", {row.steps:,} steps"
    return f"{row.network}, {row.epochs} epochs{steps}"


def remark_on(rows: Sequence[TuningRow]) -> str:
    """Return on what the numbers rest, and how far chance alone can move one of them."""
    images = rows[0].images_held_out
    devices = ", ".join(dict.fromkeys(row.device for row in rows))
    commits = ", ".join(dict.fromkeys(_short(row.commit) for row in rows if row.commit)) or "unknown"
    error = 50 / math.sqrt(images)  # the largest there is, that of a share of one half
    return (
        f"Percent of {images:,} held-out training images; the standard error of one number is up to {error:.1f} "
        f"points. Device: {devices}. Commits: {commits}."
    )


def _short(commit: str) -> str:
    digits, plus, changes = commit.partition("+")
    return f"{digits[:COMMIT_DIGITS]}{plus}{changes}"


def _row(cells: Sequence[str]) -> TuningRow:
    """Return the row of a line; raise `ValueError` with the name of its run where a cell cannot be."""
    if len(cells) != len(_TYPES):
        raise ValueError(
            f"{cells[0]} must have {len(_TYPES)} cells, got {len(cells)}; text that holds a comma stands in quotes"
        )
    row = TuningRow(**{name: _cell(name, text, of=cells[0]) for name, text in zip(_TYPES, cells, strict=True)})
    for name, share in zip(SHARES, (*row.shares, row.train_accuracy), strict=True):
        if not 0 <= share <= 1:
            raise ValueError(f"{name} of {row.run} must lie in [0, 1], got {share}")
    if min(row.images_held_out, row.epochs) < 1 or not 0 <= row.seconds < math.inf:
        raise ValueError(f"images_held_out and epochs of {row.run} must be at least 1, and seconds finite")
    return row


def _cell(name: str, text: str, *, of: str) -> Any:
    kind = _TYPES[name]
    if kind is str:
        if not text.isprintable():
            raise ValueError(f"{name} of {of!r} must be one line of printable text, got {text!r}")
        return text
    if kind == int | None and not text:
        return None
    try:
        return float(text) if kind is float else int(text)
    except ValueError:
        raise ValueError(f"{name} of {of} must be a number, got {text!r}") from None
