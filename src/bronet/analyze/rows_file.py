"""The rows behind a figure as a CSV file: nine digits of a measured number, everything else as it is."""

import csv
import io
from collections.abc import Sequence


def csv_text(names: Sequence[str], rows: Sequence[tuple[object, ...]]) -> str:
    """Return the rows under the names of their columns."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([f"{value:.9g}" if isinstance(value, float) else value for value in row] for row in rows)
    return text.getvalue()
