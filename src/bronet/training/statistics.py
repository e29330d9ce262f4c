"""What is counted while training, and what a person sees of it: of the running epoch, and of held-out images.

Certified accuracies count images at a budget with `bronet.radius` and the model's current gap: where a layer's norm is
only estimated, so are these numbers. They are no certificates. The test set is never looked at.
"""

import math
import time
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float64
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from bronet.data import ImageSet
from bronet.errors import BronetError
from bronet.graph.model import evaluating
from bronet.layers import frozen
from bronet.models import CertifiableModel
from bronet.radius import certified_at, margin_radius
from bronet.training.distributed import ALONE, Processes, is_sharded

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

VALIDATION_BATCH = 500
NEVER = math.inf
BAR_WIDTH = 12  # columns: the whole line fits into a terminal of 80
CLOCK_TICK = 1e-9  # seconds: the finest a performance counter tells apart


class Summary(NamedTuple):
    """Means over the images counted so far; all are NaN before the first one."""

    loss: float
    accuracy: float
    certified_accuracy: float

    def __str__(self) -> str:
        return f"loss {self.loss:.4f}  accuracy {self.accuracy:.1%}  certified {self.certified_accuracy:.1%}"


class Tally:
    """Sums of loss, correct, certified and images, and the first step at which something was not finite.

    `sums` are this process's own, on the training device, so that a step never waits for them; everything that is read
    from a tally is of all processes together.
    """

    def __init__(self, *, eps: float, device: torch.device | str, processes: Processes = ALONE) -> None:
        self.eps, self.processes = eps, processes
        self.fresh: Float64[Tensor, "5"] = torch.tensor([0.0, 0, 0, 0, NEVER], dtype=torch.float64, device=device)
        self.sums = self.fresh.clone()

    def reset(self) -> None:
        """Start a new epoch."""
        self.sums.copy_(self.fresh)

    @torch.no_grad()
    def add(
        self, logits: Tensor, labels: Tensor, gap: Tensor, *, step: Tensor, loss: Tensor, gradient_norm: Tensor
    ) -> None:
        """Count one batch."""
        prediction, _, radius = margin_radius(logits.float(), gap)
        correct = prediction == labels
        certified = certified_at(radius, correct, self.eps)
        counts = (correct.sum().to(loss), certified.sum().to(loss), torch.full_like(loss, len(labels)))
        self.sums[:-1] += torch.stack([loss * len(labels), *counts])
        finite = loss.isfinite() & gradient_norm.isfinite()
        self.sums[-1] = torch.minimum(self.sums[-1], torch.where(finite, NEVER, step))

    def total(self) -> Float64[Tensor, "5"]:
        """Return the sums of all processes."""
        return torch.cat((self.processes.sum(self.sums[:-1]), self.processes.least(self.sums[-1:])))

    def first_bad_step(self) -> int | None:
        """Return the first step whose loss or gradient was not finite, or None."""
        first = float(self.total()[-1])
        return None if first == NEVER else int(first)

    def summary(self) -> Summary:
        """Return the means so far; waits for the device."""
        loss, correct, certified, images = self.total()[:-1].tolist()
        return Summary(*(value / (images or math.nan) for value in (loss, correct, certified)))


@torch.no_grad()
def validate(
    model: CertifiableModel, images: ImageSet, *, budgets: Sequence[float], processes: Processes
) -> list[float]:
    """Return the shares of all held-out images that are correct, and certified at each budget.

    Each process does its part.
    """
    counts = torch.zeros(1 + len(budgets), dtype=torch.float64, device=images.images.device)
    # Processes of a sharded network go through it together, so all take as many images: some one that does not count.
    mine = torch.arange(-(-len(images) // processes.world)) * processes.world + processes.rank
    # What a sharded network gathers for one pass is not to be kept for the next.
    sharded = any(is_sharded(parameter) for parameter in model.parameters())
    with evaluating(model), nullcontext() if sharded else frozen(model):
        gap = model.gap_lipschitz()
        for wanted in mine.split(VALIDATION_BATCH):
            counted, index = (wanted < len(images)).to(counts.device), wanted.clamp(max=len(images) - 1)
            labels = images.labels[index.to(images.labels.device)]
            prediction, _, radius = margin_radius(model(images.pixels(index)), gap)
            correct = (prediction == labels) & counted
            certified = [certified_at(radius, correct, eps).sum() for eps in budgets]
            counts += torch.stack((correct.sum(), *certified))
    shares: list[float] = (processes.sum(counts) / len(images)).tolist()
    return shares


class Display:
    """A live bar over all steps on a terminal, within 80 columns; a line per epoch elsewhere; or nothing.

    The bar shows while its context is entered. The time left follows from many steps, so that it does not jump when a
    single one takes long.
    """

    def __init__(self, *, enabled: bool = False, total_steps: int = 0, first_step: int = 0) -> None:
        self.console = Console(quiet=not enabled)
        self.live = enabled and self.console.is_terminal
        self.bar = Progress(
            BarColumn(bar_width=BAR_WIDTH),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.live,
            speed_estimate_period=math.inf,
        )
        self.task = self.bar.add_task("training", total=total_steps, completed=first_step, numbers="")

    def before(self, line: str) -> None:
        """Show on the bar what is done before the first step."""
        self.bar.update(self.task, numbers=line)

    def update(self, *, step: int, summary: Summary, images_per_second: float) -> None:
        """Move the bar to where the run stands after `step` steps."""
        loss, accuracy, certified = summary
        numbers = f"loss {loss:.3f}  acc {accuracy:.1%}  cert {certified:.1%}  {images_per_second:,.0f} img/s"
        self.bar.update(self.task, completed=step, numbers=numbers)

    def epoch(self, line: str) -> None:
        """Print the line of a finished epoch and the time left, where there is no bar."""
        if not self.live:
            seconds = self.bar.tasks[0].time_remaining
            left = f"  {timedelta(seconds=round(seconds))} left" if seconds else ""
            self.console.print(f"{line}{left}", markup=False, highlight=False, soft_wrap=True)


class Stopwatch:
    """Seconds of training, in this process and those it resumes but not between them, and the speed since a lap began.

    `images` are those trained on in this lap.
    """

    def __init__(self, seconds_before: float = 0.0) -> None:
        self.start = time.perf_counter() - seconds_before
        self.lap()

    def lap(self) -> None:
        self.lap_start, self.images = self.seconds(), 0

    def seconds(self) -> float:
        """Return the seconds so far."""
        return time.perf_counter() - self.start

    def speed(self) -> float:
        """Return the images per second of this lap."""
        return self.images / max(self.seconds() - self.lap_start, CLOCK_TICK)


def tensorboard_writer() -> "type[SummaryWriter]":
    """Return torch's writer; an error where the extra is missing, which a run asks before it makes its folder."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of packages behind it
            from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise BronetError("--track needs tensorboard; install it with: pip install 'bronet[track]'") from None
    return SummaryWriter
