"""Accuracy on held-out images while training: to tune and to keep the best weights, never the test set.

The certified accuracy uses the model's current estimate of its constants, as the training log does. It is no
certificate.
"""

from typing import NamedTuple

import torch

from bronet.data import ImageSet
from bronet.layers import frozen
from bronet.models import CertifiableModel
from bronet.radius import certified_at, certified_radius
from bronet.train.processes import Processes

BATCH = 500


class Validation(NamedTuple):
    """Shares of the held-out images."""

    accuracy: float
    certified_accuracy: float


@torch.no_grad()
def validate(model: CertifiableModel, images: ImageSet, *, eps: float, processes: Processes) -> Validation:
    """Return the accuracies over all held-out images, each process doing its part; the model stays in training mode."""
    counts = torch.zeros(2, dtype=torch.float64, device=images.images.device)
    mine = torch.arange(processes.rank, len(images), processes.world)
    model.eval()
    with frozen(model):
        gap = model.gap_lipschitz()
        for index in mine.split(BATCH):
            labels = images.labels[index.to(images.labels.device)]
            prediction, _, radius = certified_radius(model(images.pixels(index)), gap)
            correct = prediction == labels
            counts += torch.stack((correct.sum(), certified_at(radius, correct, eps).sum()))
    model.train()
    accuracy, certified = (processes.sum(counts) / len(images)).tolist()
    return Validation(accuracy, certified)
