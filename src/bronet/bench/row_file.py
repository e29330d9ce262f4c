"""Measured rows, any dataclass, as the text of a CSV or JSON file."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any


def csv_text(rows: Sequence[Any]) -> str:
    """Return at least one row as a CSV file under the names of its fields; an empty cell is what was not measured."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(asdict(rows[0])), lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue()


def json_text(rows: Sequence[Any], *, facts: dict[str, object]) -> str:
    """Return the rows and the facts around them (command, commit, versions) as JSON."""
    return json.dumps({**facts, "rows": [asdict(row) for row in rows]}, indent=2) + "\n"
