"""Cells of a Markdown table."""


def cells_of(table: str, start: str) -> list[str]:
    """Return the cells of the one line that starts so."""
    (line,) = (line for line in table.splitlines() if line.startswith(f"| {start} "))
    return [cell.strip() for cell in line.strip("| ").split(" | ")]
