"""The log of tuning runs: one line per run, judged on held-out training images, never on the test set.

Certified shares are estimates with the constants that training uses, and no certificates. `bronet.bench.tuning_rows`
collects the lines from run folders; a person writes the verdicts.
"""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from bronet.errors import BronetError
from bronet.report.aligned import aligned
from bronet.report.paper import NOT_RUN
from bronet.report.table import ABSENT

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


def read_tuning(path: Path) -> list[TuningRow]:
    """Return the rows of the log, none if there is no such file; raise where it contradicts itself."""
    if not path.exists():
        return []
    types = get_type_hints(TuningRow)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [
                TuningRow(**{name: _cell(cells[name], types[name]) for name in types}) for cells in csv.DictReader(file)
            ]
    except (OSError, UnicodeDecodeError, KeyError, ValueError, TypeError) as error:
        raise BronetError(f"rows must be a tuning.csv of bronet.bench.tuning_rows, got {path} ({error!r})") from None
    names = [row.run for row in rows]
    for row in rows:
        if names.count(row.run) > 1:
            raise BronetError(f"{path} must name every run once, got {row.run} {names.count(row.run)} times")
        if row.against and row.against not in names:
            raise BronetError(f"{path}: {row.run} is compared with {row.against}, which has no line")
    return rows


def tuning_table(rows: Sequence[TuningRow]) -> str:
    """Return the log as Markdown: shares in percent, and the difference in points to the run of `against`.

    What all runs have in common stands below the table; seconds and training accuracy are in the file only.
    """
    if not rows:
        return f"Tuning runs: {NOT_RUN}.\n"
    named = {row.run: row for row in rows}
    same = len({_size(row) for row in rows}) == 1
    cells = [
        ["run", "changed", *([] if same else ["network"]), "clean / 36 / 72 / 108", "against", "difference", "verdict"]
    ]
    for row in rows:
        base = named.get(row.against)
        apart = [100 * (mine - other) for mine, other in zip(row.shares, base.shares, strict=True)] if base else []
        cells.append(
            [
                f"`{row.run}`",
                row.changed or ABSENT,
                *([] if same else [_size(row)]),
                " / ".join(f"{100 * share:.1f}" for share in row.shares),
                f"`{row.against}`" if base else ABSENT,
                " / ".join(f"{points:+.1f}" for points in apart) or ABSENT,
                row.verdict or ABSENT,
            ]
        )
    common = f"All runs: {_size(rows[0])}. " if same else ""
    return f"{aligned(cells)}\n{common}{_remark(rows)}\n"


def _size(row: TuningRow) -> str:
    steps = "" if row.steps is None else f", {row.steps:,} steps"
    return f"{row.network}, {row.epochs} epochs{steps}"


def _remark(rows: Sequence[TuningRow]) -> str:
    """Return on what the numbers rest, and how far chance alone can move one of them."""
    counts = sorted({row.images_held_out for row in rows})
    devices = ", ".join(dict.fromkeys(row.device for row in rows))
    commits = ", ".join(dict.fromkeys(_short(row.commit) for row in rows if row.commit)) or "unknown"
    error = 50 / math.sqrt(counts[0])  # the largest there is, that of a share of one half
    return (
        f"Percent of {' or '.join(f'{count:,}' for count in counts)} held-out training images; the standard error of "
        f"one number is up to {error:.1f} points. Device: {devices}. Commits: {commits}."
    )


def _short(commit: str) -> str:
    digits, plus, changes = commit.partition("+")
    return f"{digits[:COMMIT_DIGITS]}{plus}{changes}"


def _cell(text: str, kind: object) -> Any:
    if kind is str:
        return text
    if kind == int | None and not text:
        return None
    return float(text) if kind is float else int(text)
