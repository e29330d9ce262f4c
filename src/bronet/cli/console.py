"""What a person sees: lines, tables, and a bar while images are worked on; without a terminal, lines of text.

Colours follow the terminal and the variable NO_COLOR, as rich does.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from bronet.run.certificate import CertificateFile, Statistics
from bronet.run.shares import Share
from bronet.wording import bound_text, number_text, percent

PIPE_WIDTH = 200
"""Columns where the output is no terminal: wide enough that no number is cut."""
LINES_WITHOUT_TERMINAL = 10
"""Lines of progress at most where the output is no terminal."""
BAR_WIDTH = 24
SPEED_SECONDS = 3600.0
"""From which the time left is estimated: one batch of AutoAttack takes minutes."""
POINTS_OF_ONE_IMAGE = 98.0
"""1.96 standard errors, in points, of a share of one half; of n images it is this over the root of n."""


@cache
def open_console() -> Console:
    """Return this process's console on stdout; of the processes of torchrun only the first one's prints."""
    console = Console(highlight=False, quiet=not Share.of_this_process().is_main)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def say(line: str) -> None:
    """Print a line as it is, without cutting it, so that commands and paths in it can be copied."""
    open_console().print(line, markup=False, soft_wrap=True)


@contextmanager
def counting(doing: str, *, things: str = "images") -> Iterator[Callable[[int, int], None]]:
    """Show the progress of doing something to things; the block calls what it gets with the numbers done and in all.

    Where the output is no terminal, a line is printed whenever another tenth is done.
    """
    shown = 0

    def print_tenth(done: int, total: int) -> None:
        nonlocal shown
        tenth = done * LINES_WITHOUT_TERMINAL // total
        if tenth > shown:
            shown = tenth
            say(f"{doing}: {done:,} of {total:,} {things}")

    console = open_console()
    if not console.is_terminal:
        yield print_tenth
        return
    bars = (BarColumn(bar_width=BAR_WIDTH), MofNCompleteColumn(), TextColumn("left"), TimeRemainingColumn())
    columns = (SpinnerColumn(), TextColumn(doing), *bars)
    with Progress(*columns, console=console, speed_estimate_period=SPEED_SECONDS) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def show_results(name: str, certificate: CertificateFile, statistics: Statistics) -> None:
    """Print the table of one run, a quantity per line."""
    title = f"{name}: {certificate.images:,} {certificate.split} images of {certificate.data}"
    lines = [
        ["clean accuracy", percent(statistics.clean_accuracy)],
        *([f"certified accuracy, radius {eps}", percent(share)] for eps, share in statistics.certified.items()),
        ["median radius of the correct images", number_text(statistics.radius.median)],
        ["Lipschitz bound of all layers before the head", bound_text(certificate.lipschitz)],
    ]
    _show_table(title, lines, style="bold")


def show_comparison(cells: Sequence[Sequence[str]]) -> None:
    """Print the table of several runs, a run per line; the header comes first."""
    _show_table("Certified accuracy: a proof for every image that counts", cells[1:], header=cells[0])


def show_naive(naive: Statistics) -> None:
    """Print the accuracies of the literature's way, labelled."""
    lines = [[f"estimated at radius {eps}", percent(share)] for eps, share in naive.certified.items()]
    lines.append(["median estimate of the correct images", number_text(naive.radius.median)])
    _show_table("By float32 and power iteration: NOT A PROOF", lines)


def _show_table(title: str, lines: Sequence[Sequence[str]], *, header: Sequence[str] = (), style: str = "") -> None:
    """Print lines of cells; numbers, which stand in every column but the first, are never cut."""
    table = Table(title=Text(title), title_justify="left", show_header=bool(header))
    for number, heading in enumerate(header or lines[0]):
        numbers = number > 0
        table.add_column(heading, justify="right" if numbers else "left", no_wrap=numbers, style=style * numbers)
    for line in lines:
        table.add_row(*map(Text, line))
    open_console().print(table)


def show_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print a table of two columns: what, and its value."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for what, value in facts:
        table.add_row(Text(what), Text(value))
    open_console().print(table)


def note_of_few(images: int, *, split: str, limit: int | None) -> None:
    """Say how little some of the images know of them all, if they are not all."""
    if split != "sample" and images != limit:
        return
    points = POINTS_OF_ONE_IMAGE / math.sqrt(images)
    few = f"a sample of {images:,} test images, not of the test set"
    some = few if split == "sample" else f"the first {images:,} {split} images only"
    say(f"note:    numbers of {some}; +- {points:.0f} points or less")
