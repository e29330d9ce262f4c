"""Markdown tables that can be read in a terminal, too, and the numbers in their cells."""

from collections.abc import Sequence


def aligned(cells: Sequence[Sequence[str]]) -> str:
    """Return cells, the header first, as a Markdown table whose columns line up in a terminal too."""
    texts = [[cell.replace("|", "\\|") for cell in line] for line in cells]
    widths = [max(len(line[column]) for line in texts) for column in range(len(texts[0]))]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in texts]
    ruler = ["-" * max(width, 3) for width in widths]
    return "".join(f"| {' | '.join(line)} |\n" for line in (padded[0], ruler, *padded[1:]))


def joined(values: Sequence[float], sign: str = "") -> str:
    """Return percents or points as one cell; what rounds to zero has no minus."""
    return " / ".join(f"{value:{sign}z.1f}" for value in values)


def apart(mine: Sequence[float], others: Sequence[float]) -> str:
    """Return mine minus others as one cell, with signs; empty where one side has fewer numbers."""
    if len(mine) != len(others):
        return ""
    return joined([own - other for own, other in zip(mine, others, strict=True)], "+")
