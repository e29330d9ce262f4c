"""The log of tuning runs: what was changed, and what it gave on held-out training images, never on the test set.

Certified shares are estimates with the constants that training uses, and no certificates. `python -m lab tuning BASE
RUN... --out FILE` adds lines: every RUN is compared with BASE, which gets a line of its own where it has none yet.
Lines of other runs stay, and so do the verdicts, which a person writes.
"""

import csv
import io
import json
import lzma
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard, get_type_hints

from bronet.errors import BronetError
from bronet.files import read_object, replace_bytes
from bronet.recipe import Recipe, differing_keys
from bronet.recipe.architecture import NAMED
from bronet.recipe.text import dotted
from bronet.records import as_plain
from bronet.run.folder import RunFolder, open_run
from lab.bench import csv_text
from lab.recipes import TABLE_NETWORKS
from lab.tables.cells import aligned, differences
from lab.tables.paper import NOT_RUN
from lab.tables.published import BUDGETS

PACKED = ".xz"
FILE = Path("speedrun") / f"tuning.csv{PACKED}"
"""Where the log lies below the folder of results."""
COMMIT_DIGITS = 7
NAME_KEY = "name"
"""What a recipe is called changes nothing."""
DIGITS = 6
"""Shares of a few thousand images have fewer; more would be the rounding of a division."""
REPEATED = "nothing: the same again"


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
        content = path.read_bytes()
        text = (lzma.decompress(content) if path.suffix == PACKED else content).decode(
            "utf-8-sig"
        )  # as spreadsheets do
        header, *lines = [cells for cells in csv.reader(io.StringIO(text, newline="")) if cells]
        if header != list(_TYPES):
            raise ValueError(f"its columns must be {', '.join(_TYPES)}, got {', '.join(header)}")
        rows = [_row(cells) for cells in lines]
    except (OSError, ValueError, csv.Error, lzma.LZMAError) as error:
        raise BronetError(f"rows must be a tuning.csv of `python -m lab tuning`, got {path} ({error})") from None
    names = [row.run for row in rows]
    for row in rows:
        if names.count(row.run) > 1:
            raise BronetError(f"{path} must name every run once, got {row.run} {names.count(row.run)} times")
        if row.against and row.against not in names:
            raise BronetError(f"{path}: {row.run} is compared with {row.against}, which has no line")
    return rows


def changes_table(rows: Sequence[TuningRow], names: Sequence[str]) -> str:
    """Return what some of the runs changed, and the difference in points to the run of `against`, as Markdown."""
    if not rows:
        return f"Tuning runs: {NOT_RUN}.\n"
    named = {row.run: row for row in rows}
    unknown = [name for name in names if name not in named or not named[name].against]
    if unknown or not names:
        raise BronetError(f"a block tuning must name runs that are compared with another, got {' '.join(unknown)!r}")
    chosen = [named[name] for name in names]
    cells = [["run", "changed", "clean / 36 / 72 / 108"]]
    for row in chosen:
        cells.append([f"`{row.run}`", row.changed, differences(row.percents, named[row.against].percents)])
    error = _standard_error(min(row.images_held_out for row in chosen))
    return f"{aligned(cells)}\nThe standard error of one accuracy is up to {error:.1f} points.\n"


def remark_on(rows: Sequence[TuningRow]) -> str:
    """Return on what the numbers rest, and how far chance alone can move one of them."""
    images = rows[0].images_held_out
    devices = ", ".join(dict.fromkeys(row.device for row in rows))
    commits = ", ".join(dict.fromkeys(_short(row.commit) for row in rows if row.commit)) or "unknown"
    return (
        f"Percent of {images:,} held-out training images; the standard error of one number is up to "
        f"{_standard_error(images):.1f} points. Device: {devices}. Commits: {commits}."
    )


def _standard_error(images: int) -> float:
    """Return the largest standard error in percent that a share of so many images can have: that of one half."""
    return 50 / math.sqrt(images)


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


def write_tuning(path: Path, rows: Sequence[TuningRow]) -> None:
    """Write the log, compressed where the name ends in .xz, replacing the file at once."""
    content = csv_text(rows).encode()
    replace_bytes(path, lzma.compress(content, preset=9) if path.suffix == PACKED else content)


def collect(base: Path, runs: Sequence[Path], before: Sequence[TuningRow] = ()) -> list[TuningRow]:
    """Return the lines of a log with those of `runs` added or renewed, each compared with `base`.

    A line that is already there keeps its place and its verdict. Runs that do not share their held-out images are not
    comparable, and refused; so are two runs of one folder name, of which only one could have a line.
    """
    names = [_name(path) for path in (base, *runs)]
    for name in names:
        if names.count(name) > 1:
            raise BronetError(f"runs must have folder names of their own, got {name} {names.count(name)} times")
    rows = {row.run: row for row in before}
    first = tuning_row(base)
    known = rows.get(first.run, first)
    rows[first.run] = replace(first, changed=known.changed, against=known.against, verdict=known.verdict)
    for path in runs:
        row = tuning_row(path, base=base)
        earlier = rows.get(row.run)
        rows[row.run] = replace(row, verdict=earlier.verdict) if earlier else row
    return list(rows.values())


def tuning_row(path: Path, *, base: Path | None = None) -> TuningRow:
    """Return the line of a finished run; `base` is the run it is compared with."""
    run = open_run(path)
    recipe, record, last = run.recipe, read_object(run.record), _last_line(run)
    if last.get("epoch") != recipe.train.epochs:
        raise BronetError(f"{run.log} must end with epoch {recipe.train.epochs}, got {last.get('epoch')}; resume it")
    certified = last.get("validation_certified")
    shares = [certified.get(budget) if isinstance(certified, dict) else None for budget in BUDGETS]
    wanted = [last.get("validation_accuracy"), *shares, last.get("accuracy"), record.get("seconds")]
    numbers = [round(float(value), DIGITS) for value in wanted if _is_number(value)]
    if len(numbers) < len(wanted):
        raise BronetError(
            f"the last line of {run.log} must have validation_accuracy and validation_certified at "
            f"{', '.join(BUDGETS)}, and {run.record.name} the seconds; train with data.held_out, with "
            "train.validate_every such that the last epoch counts, and with these radii in certify.eps"
        )
    clean, at_36, at_72, at_108, accuracy, seconds = numbers
    steps = record.get("steps")
    return TuningRow(
        run=_name(path),
        changed=_changed(run, base) if base else "",
        against=_name(base) if base else "",
        network=_network(recipe),
        epochs=recipe.train.epochs,
        steps=steps if isinstance(steps, int) else None,
        seconds=seconds,
        images_held_out=recipe.data.held_out,
        clean=clean,
        certified_36=at_36,
        certified_72=at_72,
        certified_108=at_108,
        train_accuracy=accuracy,
        commit=_commit(run),
        device=str(record.get("device", "")),
        verdict="",
    )


def _changed(run: RunFolder, base: Path) -> str:
    """Return in which settings a run differs from its base, with both values; or that only the program does."""
    mine, theirs = run.recipe, open_run(base).recipe
    if (mine.data.name, mine.data.held_out) != (theirs.data.name, theirs.data.held_out):
        raise BronetError(
            f"runs to compare must hold out the same images, got {theirs.data.held_out} of {theirs.data.name} "
            f"in {base} and {mine.data.held_out} of {mine.data.name} in {run.path}"
        )
    new, old = dotted(as_plain(mine)), dotted(as_plain(theirs))
    keys = [key for key in differing_keys(mine, theirs) if key != NAME_KEY]
    if keys:
        return "; ".join(f"{key}: {_value(old.get(key))} -> {_value(new.get(key))}" for key in keys)
    programs = _commit(open_run(base)), _commit(run)
    return REPEATED if programs[0] == programs[1] else "the program only"


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)


def _value(value: Any) -> str:
    return "none" if value in ("", None, []) else str(value)


def _network(recipe: Recipe) -> str:
    """Return the name of the network, or its family and size if it has none."""
    for name, architecture in (NAMED | TABLE_NETWORKS).items():
        if architecture == recipe.model:
            return name
    plain = as_plain(recipe)["model"]
    sizes = [f"{key} {plain[key]}" for key in ("width", "depth") if key in plain]
    return ", ".join([plain["family"], *sizes])


def _name(path: Path) -> str:
    return path.resolve().name


def _commit(run: RunFolder) -> str:
    return str(read_object(run.record).get("commit") or "")


def _last_line(run: RunFolder) -> dict[str, Any]:
    try:
        lines = run.log.read_text(encoding="utf-8").splitlines()
        entry = json.loads(lines[-1])
    except (OSError, ValueError, IndexError) as error:
        raise BronetError(f"could not read the last epoch from {run.log} ({error}); train this run first") from None
    if not isinstance(entry, dict):
        raise BronetError(f"the last line of {run.log} must be a JSON object, got {type(entry).__name__}")
    return entry
