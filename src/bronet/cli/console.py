"""What a person sees: tables, and a bar while images are worked on. Lines of text where the output is no terminal.

Colours follow the terminal and the variable NO_COLOR, as rich does.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from bronet.cli.options import Split
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


def open_console() -> Console:
    """Return a console on stdout."""
    console = Console(highlight=False, quiet=not Share.of_this_process().is_main)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def say(console: Console, line: str) -> None:
    """Print a line as it is, without cutting it, so that commands and paths in it can be copied."""
    console.print(line, markup=False, soft_wrap=True)


@contextmanager
def counting(console: Console, doing: str, *, things: str = "images") -> Iterator[Callable[[int, int], None]]:
    """Show the progress of doing something to things; the block calls what it gets with the numbers done and in all.

    Where the output is no terminal, a line is printed whenever another tenth is done.
    """
    shown = 0

    def print_tenth(done: int, total: int) -> None:
        nonlocal shown
        tenth = done * LINES_WITHOUT_TERMINAL // total
        if tenth > shown:
            shown = tenth
            say(console, f"{doing}: {done:,} of {total:,} {things}")

    if not console.is_terminal:
        yield print_tenth
        return
    bars = (BarColumn(bar_width=BAR_WIDTH), MofNCompleteColumn(), TextColumn("left"), TimeRemainingColumn())
    columns = (SpinnerColumn(), TextColumn(doing), *bars)
    with Progress(*columns, console=console, speed_estimate_period=SPEED_SECONDS) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def show_results(console: Console, name: str, certificate: CertificateFile, statistics: Statistics) -> None:
    """Print the table of one run, a quantity per line."""
    title = f"{name}: {certificate.images:,} {certificate.split} images of {certificate.data}"
    shares = {f"certified accuracy, radius {eps}": percent(share) for eps, share in statistics.certified.items()}
    rows = {
        "clean accuracy": percent(statistics.clean_accuracy),
        **shares,
        "median radius of the correct images": number_text(statistics.radius.median),
        "Lipschitz bound of all layers before the head": bound_text(certificate.lipschitz),
    }
    console.print(_quantities(title, rows, style="bold"))


def note_of_few(console: Console, images: int, *, split: Split, limit: int | None) -> None:
    """Say how little some of the images know of them all, if they are not all."""
    if split != "sample" and images != limit:
        return
    points = POINTS_OF_ONE_IMAGE / math.sqrt(images)
    few = f"a sample of {images:,} test images, not of the test set"
    some = few if split == "sample" else f"the first {images:,} {split} images only"
    say(console, f"note:    numbers of {some}; +- {points:.0f} points or less")


def show_naive(console: Console, naive: Statistics) -> None:
    """Print the accuracies of the literature's way, labelled."""
    rows = {f"estimated at radius {eps}": percent(share) for eps, share in naive.certified.items()}
    rows["median estimate of the correct images"] = number_text(naive.radius.median)
    console.print(_quantities("By float32 and power iteration: NOT A PROOF", rows))


def _quantities(title: str, rows: Mapping[str, str], *, style: str = "") -> Table:
    table = Table(title=Text(title), title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right", style=style, no_wrap=True)
    for what, value in rows.items():
        table.add_row(what, value)
    return table


def facts_table(facts: Sequence[tuple[str, str]]) -> Table:
    """Return a table of two columns: what, and its value."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for what, value in facts:
        table.add_row(Text(what), Text(value))
    return table
