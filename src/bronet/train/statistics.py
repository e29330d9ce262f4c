"""What is counted while training: of the running epoch, and of held-out images at its end.

Certified accuracies count images at a budget with `bronet.radius` and the model's current gap: where a layer's norm is
only estimated, so are these numbers. They are no certificates. The test set is never looked at.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from bronet.data import ImageSet
from bronet.layers import frozen
from bronet.models import CertifiableModel
from bronet.radius import certified_at, margin_radius
from bronet.train.distributed import Processes
from bronet.train.sharding import is_sharded

VALIDATION_BATCH = 500
ENTRIES = 5
NEVER = float("inf")


class Summary(NamedTuple):
    """Means over the images counted so far; all are NaN before the first one."""

    loss: float
    accuracy: float
    certified_accuracy: float
    images: int


class Tally:
    """Sums of loss, correct, certified and images, and the first step at which something was not finite.

    They are kept on the training device, so that a step never waits for them.
    `sums` are this process's own; everything that is read from a tally is of all processes together.
    """

    def __init__(self, *, eps: float, device: torch.device | str, processes: Processes | None = None) -> None:
        self.eps = eps
        self.processes = processes or Processes()
        self.sums: Float64[Tensor, "5"] = torch.zeros(ENTRIES, dtype=torch.float64, device=device)
        self.reset()

    def reset(self) -> None:
        """Start a new epoch."""
        self.sums.zero_()
        self.sums[-1] = NEVER

    @torch.no_grad()
    def add(
        self,
        *,
        step: Float[Tensor, ""],
        loss: Float[Tensor, ""],
        gradient_norm: Float[Tensor, ""],
        logits: Float[Tensor, "b k"],
        labels: Int[Tensor, " b"],
        gap_lipschitz: Float[Tensor, "k k"],
    ) -> None:
        """Count one batch."""
        prediction, _, radius = margin_radius(logits.float(), gap_lipschitz)
        correct = prediction == labels
        certified = certified_at(radius, correct, self.eps)
        images = torch.full_like(loss, len(labels))
        counts = torch.stack([loss * len(labels), correct.sum().to(loss), certified.sum().to(loss), images])
        self.sums[:-1] += counts
        finite = loss.isfinite() & gradient_norm.isfinite()
        first = torch.where(finite, NEVER, step)
        self.sums[-1] = torch.minimum(self.sums[-1], first)

    def total(self) -> Float64[Tensor, "5"]:
        """Return the sums over all processes."""
        return torch.cat((self.processes.sum(self.sums[:-1]), self.processes.least(self.sums[-1:])))

    def first_bad_step(self) -> int | None:
        """Return the first step whose loss or gradient was not finite, or None."""
        first = float(self.total()[-1])
        return None if first == NEVER else int(first)

    def summary(self) -> Summary:
        """Return the means so far; waits for the device."""
        loss, correct, certified, images = self.total()[:-1].tolist()
        count = images or float("nan")
        return Summary(loss / count, correct / count, certified / count, int(images))


class Validation(NamedTuple):
    """Shares of the held-out images: correct, and certified at each budget asked for."""

    accuracy: float
    certified: tuple[float, ...]


@torch.no_grad()
def validate(
    model: CertifiableModel, images: ImageSet, *, budgets: Sequence[float], processes: Processes
) -> Validation:
    """Return the accuracies over all held-out images, each process doing its part; the model stays in training mode."""
    counts = torch.zeros(1 + len(budgets), dtype=torch.float64, device=images.images.device)
    # Processes of a sharded network go through it together, so all take as many images: some one that does not count.
    mine = torch.arange(-(-len(images) // processes.world)) * processes.world + processes.rank
    # What a sharded network gathers for one pass is not to be kept for the next.
    sharded = any(is_sharded(parameter) for parameter in model.parameters())
    model.eval()
    with nullcontext() if sharded else frozen(model):
        gap = model.gap_lipschitz()
        for wanted in mine.split(VALIDATION_BATCH):
            counted, index = (wanted < len(images)).to(counts.device), wanted.clamp(max=len(images) - 1)
            labels = images.labels[index.to(images.labels.device)]
            prediction, _, radius = margin_radius(model(images.pixels(index)), gap)
            correct = (prediction == labels) & counted
            certified = [certified_at(radius, correct, eps).sum() for eps in budgets]
            counts += torch.stack((correct.sum(), *certified))
    model.train()
    accuracy, *shares = (processes.sum(counts) / len(images)).tolist()
    return Validation(accuracy, tuple(shares))
