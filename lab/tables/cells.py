"""The cells of generated tables: Markdown that lines up in an editor too, and differences of accuracies."""

from collections.abc import Sequence

from bronet.report.table import joined


def aligned(cells: Sequence[Sequence[str]]) -> str:
    """Return cells, the header first, as a Markdown table whose columns line up in a terminal too."""
    texts = [[cell.replace("|", "\\|") for cell in line] for line in cells]
    widths = [max(len(line[column]) for line in texts) for column in range(len(texts[0]))]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in texts]
    ruler = ["-" * max(width, 3) for width in widths]
    return "".join(f"| {' | '.join(line)} |\n" for line in (padded[0], ruler, *padded[1:]))


def differences(mine: Sequence[float], others: Sequence[float]) -> str:
    """Return mine minus others as one cell, with signs; empty where one side has fewer numbers."""
    if len(mine) != len(others):
        return ""
    return joined([own - other for own, other in zip(mine, others, strict=True)], "+")
