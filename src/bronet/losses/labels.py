"""What every loss asks of its arguments, and labels that are drawn from probabilities.

Only what is known without waiting for an accelerator is checked: the range of labels held on one is not.

A label that nobody is sure of is better said as probabilities. The mean of any loss over drawn labels is linear in them
and needs no change of the loss: an image counts once for each label it may have, with that label's probability as its
weight.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bronet.errors import BronetError

LABELS_THAT_COUNT = 10
"""The likeliest labels of an image, at most so many: a loss of many classes would otherwise be computed for each."""


class DrawnLabels(NamedTuple):
    """Every image once for each of its labels, and how much each counts; the weights sum to one."""

    logits: Float[Tensor, "n k"]
    labels: Int[Tensor, " n"]
    weights: Float[Tensor, " n"]


def drawn_labels(logits: Float[Tensor, "b k"], probabilities: Float[Tensor, "b k"]) -> DrawnLabels:
    """Return logits, labels and weights for a loss whose mean over drawn labels is wanted.

    Guaranteed: with at most ten classes the weighted sum of a loss over the result is its mean over images and over
    labels drawn from `probabilities`; with more, labels beyond the ten likeliest are left out and the rest scaled to
    sum to one.
    """
    if probabilities.shape != logits.shape:
        raise BronetError(
            f"probabilities must have the shape of the logits {tuple(logits.shape)}, got {tuple(probabilities.shape)}"
        )
    images, classes = logits.shape
    likeliest = probabilities.topk(min(classes, LABELS_THAT_COUNT), dim=1)
    shares = likeliest.values / likeliest.values.sum(dim=1, keepdim=True)
    repeated = logits[:, None].expand(-1, shares.shape[1], -1).reshape(-1, classes)
    return DrawnLabels(repeated, likeliest.indices.flatten(), shares.flatten() / images)


def checked_logits(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the logits in float32 or better, once shapes, dtypes and (on the CPU) labels are checked."""
    if logits.ndim != 2 or logits.shape[0] < 1 or logits.shape[1] < 2:
        raise BronetError(f"logits must have shape (images >= 1, classes >= 2), got {tuple(logits.shape)}")
    if not logits.is_floating_point():
        raise BronetError(f"logits must be floating point, got {logits.dtype}")
    if labels.shape != logits.shape[:1] or labels.dtype != torch.int64:
        raise BronetError(
            f"labels must be int64 of shape {tuple(logits.shape[:1])}, one class index per image, "
            f"got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    if labels.device.type == "cpu" and not torch.compiler.is_compiling():
        least, largest = (int(bound) for bound in labels.aminmax())
        if least < 0 or largest >= logits.shape[1]:
            raise BronetError(f"labels must lie in 0 .. {logits.shape[1] - 1}, got {least} .. {largest}")
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def not_negative(name: str, value: float) -> None:
    """Raise unless value >= 0."""
    if not value >= 0:
        raise BronetError(f"{name} must be at least 0, got {value}")


def positive(name: str, value: float) -> None:
    """Raise unless value > 0."""
    if not value > 0:
        raise BronetError(f"{name} must be positive, got {value}")
