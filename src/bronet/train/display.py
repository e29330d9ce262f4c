"""What a person sees of training: a live bar on a terminal, plain lines elsewhere, or nothing; TensorBoard if wanted.

Nothing here changes a run. TensorBoard gets scalars of every epoch, a histogram of the margins and a few training
pictures; it needs the extra `track`. The log file of a run is written with or without it, and holds every scalar.
"""

import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from jaxtyping import Float
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from torch import Tensor

from bronet.errors import BronetError
from bronet.train.statistics import Summary

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

BAR_WIDTH = 12  # columns: the whole line fits into a terminal of 80
CLOCK_TICK = 1e-9  # seconds: the finest a performance counter tells apart
PICTURES = 16  # of a batch


class Display:
    """Shown between entering and leaving it as a context. This one shows nothing; the others override it."""

    def __enter__(self) -> "Display":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def update(self, *, step: int, summary: Summary, images_per_second: float) -> None:
        """Show the state after `step` steps."""

    def before(self, line: str) -> None:
        """Show what is done before the first step."""

    def epoch(self, line: str) -> None:
        """Show the line of a finished epoch."""


class PlainLines(Display):
    """One line per epoch, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def epoch(self, line: str) -> None:
        """Print the line as it is."""
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


class LiveBar(Display):
    """A bar over all steps with loss, accuracies, images per second and the time left, within 80 columns."""

    def __init__(self, console: Console, *, total_steps: int, first_step: int) -> None:
        self.bar = Bar(
            BarColumn(bar_width=BAR_WIDTH),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(compact=True),
            console=console,
        )
        self.task = self.bar.add_task("training", total=total_steps, completed=first_step, numbers="")

    def __enter__(self) -> "Display":
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def before(self, line: str) -> None:
        """Show the line beside the bar, which does not move yet."""
        self.bar.update(self.task, numbers=line)

    def update(self, *, step: int, summary: Summary, images_per_second: float) -> None:
        """Move the bar and refresh its numbers."""
        loss, accuracy, certified, _ = summary
        numbers = f"loss {loss:.3f}  acc {accuracy:.1%}  cert {certified:.1%}  {images_per_second:,.0f} img/s"
        self.bar.update(self.task, completed=step, numbers=numbers)


def display_for(console: Console, *, enabled: bool, total_steps: int, first_step: int) -> Display:
    """Return the display that suits where the output goes."""
    if not enabled:
        return Display()
    if console.is_terminal:
        return LiveBar(console, total_steps=total_steps, first_step=first_step)
    return PlainLines(console)


def describe(summary: Summary) -> str:
    """Return loss, accuracy and estimated certified accuracy in a few words."""
    accuracy, certified = summary.accuracy, summary.certified_accuracy
    return f"loss {summary.loss:.4f}  accuracy {accuracy:.1%}  certified {certified:.1%}"


class Stopwatch:
    """Seconds of work so far, in this process and in the ones it resumes."""

    def __init__(self, seconds_before: float = 0.0) -> None:
        self.start = time.perf_counter() - seconds_before

    def seconds(self) -> float:
        """Return the seconds since the run began, pauses between processes not counted."""
        return time.perf_counter() - self.start


class Pace:
    """Images per second since this was made; `images` counts those trained on since."""

    def __init__(self, watch: Stopwatch) -> None:
        self.watch = watch
        self.began = watch.seconds()
        self.images = 0

    def speed(self) -> float:
        """Return the images per second so far."""
        return self.images / max(self.watch.seconds() - self.began, CLOCK_TICK)


class Tracker:
    """What is told about an epoch. This one tells nobody."""

    wants_batch = False

    def epoch(self, number: int, entry: Mapping[str, object]) -> None:
        """Tell the numbers of a finished epoch."""

    def batch(self, number: int, pixels: Float[Tensor, "b c h w"], margins: Float[Tensor, " b"]) -> None:
        """Tell the last batch of an epoch: its pictures, and the margins of its images."""

    def close(self) -> None:
        """Write what is still to be written."""


class TensorBoard(Tracker):
    """Writes event files below `folder`."""

    wants_batch = True

    def __init__(self, folder: Path) -> None:
        self.writer = _summary_writer()(str(folder))

    def epoch(self, number: int, entry: Mapping[str, object]) -> None:
        for key, value in entry.items():
            if isinstance(value, int | float) and key != "epoch":
                self.writer.add_scalar(key, value, number)

    def batch(self, number: int, pixels: Float[Tensor, "b c h w"], margins: Float[Tensor, " b"]) -> None:
        self.writer.add_histogram("margin", margins.float(), number)
        self.writer.add_images("images", pixels[:PICTURES], number)

    def close(self) -> None:
        self.writer.close()


def require_tensorboard() -> None:
    """Raise unless the extra is installed: before a run folder is made, not after."""
    _summary_writer()


def _summary_writer() -> "type[SummaryWriter]":
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of packages behind it
            from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise BronetError("--track needs tensorboard; install it with: pip install 'bronet[track]'") from None
    return SummaryWriter
