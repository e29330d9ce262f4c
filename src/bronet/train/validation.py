"""Accuracy on held-out images while training: to tune and to keep the best weights, never the test set.

The certified accuracy uses the model's current estimate of its constants, as the training log does. It is no
certificate.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch

from bronet.data import ImageSet
from bronet.layers import frozen
from bronet.models import CertifiableModel
from bronet.radius import certified_at, margin_radius
from bronet.train.processes import Processes
from bronet.train.sharding import is_sharded

BATCH = 500


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
        for wanted in mine.split(BATCH):
            counted, index = (wanted < len(images)).to(counts.device), wanted.clamp(max=len(images) - 1)
            labels = images.labels[index.to(images.labels.device)]
            prediction, _, radius = margin_radius(model(images.pixels(index)), gap)
            correct = (prediction == labels) & counted
            certified = [certified_at(radius, correct, eps).sum() for eps in budgets]
            counts += torch.stack((correct.sum(), *certified))
    model.train()
    accuracy, *shares = (processes.sum(counts) / len(images)).tolist()
    return Validation(accuracy, tuple(shares))
