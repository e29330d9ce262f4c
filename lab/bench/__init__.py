"""Timings, as rows: what `docs/speed.md` and `lab/results/bench` are made of. Never a test's assertion."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any


def json_text(rows: Sequence[Any], *, facts: dict[str, object]) -> str:
    """Return rows, any dataclass, and the facts around them (command, commit, versions) as JSON."""
    return json.dumps({**facts, "rows": [asdict(row) for row in rows]}, indent=2) + "\n"
