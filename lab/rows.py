"""Measured rows as the text of a CSV or JSON file."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any


def tuples_as_csv(names: Sequence[str], rows: Sequence[tuple[object, ...]]) -> str:
    """Return rows under the names of their columns; floats have nine digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([f"{value:.9g}" if isinstance(value, float) else value for value in row] for row in rows)
    return text.getvalue()


def json_text(rows: Sequence[Any], *, facts: dict[str, object]) -> str:
    """Return rows, any dataclass, and the facts around them (command, commit, versions) as JSON."""
    return json.dumps({**facts, "rows": [asdict(row) for row in rows]}, indent=2) + "\n"
