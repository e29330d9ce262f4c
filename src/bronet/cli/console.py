"""What a person sees: tables, and a bar while images are worked on. Lines of text where the output is no terminal.

Colours follow the terminal and the variable NO_COLOR, as rich does.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from bronet.cli.options import Split
from bronet.report.evidence import Evidence
from bronet.report.table import number_text, percent, terminal_table
from bronet.wording import bound_text

PIPE_WIDTH = 200
"""Columns where the output is no terminal: wide enough that no number is cut."""
LINES_WITHOUT_TERMINAL = 10
"""Lines of progress at most where the output is no terminal."""
BAR_WIDTH = 24
TWO_SIDED = 1.96
"""Standard errors on either side that hold 95 % of a normal distribution."""
LARGEST_VARIANCE = 0.25
"""Of one image's being right or wrong: that of a share of one half."""


def open_console() -> Console:
    """Return a console on stdout."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def say(console: Console, line: str) -> None:
    """Print a line as it is, without cutting it, so that commands and paths in it can be copied."""
    console.print(line, markup=False, soft_wrap=True)


@contextmanager
def counting(console: Console, doing: str, *, things: str = "images") -> Iterator[Callable[[int, int], None]]:
    """Show the progress of doing something to things; the block calls what it gets with the numbers done and in all."""
    if not console.is_terminal:
        yield _lines(console, doing, things)
        return
    bar = Progress(
        SpinnerColumn(),
        TextColumn(doing),
        BarColumn(bar_width=BAR_WIDTH),
        MofNCompleteColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )
    with bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def show_results(console: Console, runs: Sequence[Evidence]) -> None:
    """Print the table of one run (a quantity per line) or of several (a run per line)."""
    console.print(_one_run(runs[0]) if len(runs) == 1 else terminal_table(runs))


def sample_note(images: int, *, split: Split) -> str:
    """Return the line that says how little some of the images know of them all."""
    points = 100 * TWO_SIDED * math.sqrt(LARGEST_VARIANCE / images)
    few = f"a sample of {images:,} test images, not of the test set"
    some = few if split is Split.SAMPLE else f"the first {images:,} {split.value} images only"
    return f"note:    numbers of {some}; +- {points:.0f} points or less"


def show_naive(console: Console, naive: Evidence) -> None:
    """Print the accuracies of the literature's way, labelled."""
    title = Text("By float32 and power iteration: NOT A PROOF")
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    for eps, share in naive.statistics.certified.items():
        table.add_row(f"estimated at radius {eps}", percent(share))
    table.add_row("median estimate of the correct images", number_text(naive.statistics.radius.median))
    console.print(table)


def facts_table(facts: Sequence[tuple[str, str]]) -> Table:
    """Return a table of two columns: what, and its value."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for what, value in facts:
        table.add_row(Text(what), Text(value))
    return table


def _one_run(run: Evidence) -> Table:
    certificate, statistics = run.certificate, run.statistics
    title = f"{run.name}: {certificate.images:,} {certificate.split} images of {certificate.data}"
    table = Table(title=Text(title), title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_row("clean accuracy", percent(statistics.clean_accuracy))
    for eps, share in statistics.certified.items():
        table.add_row(f"certified accuracy, radius {eps}", percent(share))
    table.add_row("median radius of the correct images", number_text(statistics.radius.median))
    table.add_row("Lipschitz bound of all layers before the head", bound_text(certificate.lipschitz))
    return table


def _lines(console: Console, doing: str, things: str) -> Callable[[int, int], None]:
    """Return a function that prints a line whenever another tenth is done."""
    shown = 0

    def show(done: int, total: int) -> None:
        nonlocal shown
        tenth = done * LINES_WITHOUT_TERMINAL // total
        if tenth > shown:
            shown = tenth
            say(console, f"{doing}: {done:,} of {total:,} {things}")

    return show
