"""What the tests here share: how a row of the table is told, and what a command may leave."""

from collections.abc import Callable, Sequence
from pathlib import Path

Tell = Callable[[str, int, Sequence[str]], None]
"""Called with what was done, how often, and a line for each thing that was lost."""


def left_behind(folder: Path) -> list[str]:
    """Return the hidden files below a folder: what unfinished writes leave."""
    return [str(path) for path in folder.rglob(".*")]
