"""Experiments behind single figures and claims of the paper: losses, landscapes, capacity, LOT's iteration."""

from collections.abc import Sequence

from bronet.records import csv_text


def tuples_as_csv(names: Sequence[str], rows: Sequence[tuple[object, ...]]) -> str:
    """Return rows as a CSV file under the names of their columns; floats have nine digits."""
    lines = ([f"{value:.9g}" if isinstance(value, float) else value for value in row] for row in rows)
    return csv_text([names, *lines])
