"""Running statistics of an epoch, kept on the training device so that a step never waits for them.

The certified accuracy counts training images at one budget with `bronet.radius` and the model's current gap:
where a layer's norm is only estimated, so is this number. It is no certificate.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from bronet.radius import certified_at, margin_radius
from bronet.train.processes import Processes

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
