"""Tuning runs as lines of a log: what was changed, what it gave on held-out images, how long it took.

`python -m lab tuning BASE RUN... --out FILE` calls it. Every RUN is compared with BASE, which gets a line of its own
where it has none yet. Lines of other runs stay, and so do the verdicts, which a
person writes. Read are recipe.yaml, record.json and the last line of log.jsonl, nothing else.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

from bronet.errors import BronetError
from bronet.files import read_object
from bronet.recipe import Recipe, differing_keys
from bronet.recipe.architecture import NAMED
from bronet.recipe.text import flatten
from bronet.records import as_plain
from bronet.run.folder import RunFolder, open_run
from lab.tables.published import BUDGETS
from lab.tables.tuning import TuningRow

NAME_KEY = "name"
"""What a recipe is called changes nothing."""
DIGITS = 6
"""Shares of a few thousand images have fewer; more would be the rounding of a division."""
REPEATED = "nothing: the same again"


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
    new, old = flatten(as_plain(mine)), flatten(as_plain(theirs))
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
    for name, architecture in NAMED.items():
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
