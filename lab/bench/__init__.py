"""Timings, as rows: what `docs/speed.md` and `lab/results/bench` are made of. Never a test's assertion."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any


def json_text(rows: Sequence[Any], *, facts: dict[str, object]) -> str:
    """Return rows, any dataclass, and the facts around them (command, commit, versions) as JSON."""
    return json.dumps({**facts, "rows": [asdict(row) for row in rows]}, indent=2) + "\n"


def csv_text(rows: Sequence[Any]) -> str:
    """Return at least one row, any dataclass, as a CSV file under the names of its fields; None is an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(asdict(rows[0])), lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue()
