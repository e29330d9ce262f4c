"""Checks of the arguments of losses, and labels that are drawn from probabilities.

Nothing waits for an accelerator, so the range of labels on one is not checked. The mean of any loss over labels drawn
from probabilities needs no change of the loss: an image counts once for each label, weighted by the label's
probability.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bronet.errors import BronetError

MAX_LABELS = 10
"""Less probable labels of an image are ignored, because the loss is computed once for every label."""


class DrawnLabels(NamedTuple):
    """Every image once for each of its labels, with weights whose sum is one."""

    logits: Float[Tensor, "n k"]
    labels: Int[Tensor, " n"]
    weights: Float[Tensor, " n"]


def drawn_labels(logits: Float[Tensor, "b k"], probabilities: Float[Tensor, "b k"]) -> DrawnLabels:
    """Return logits, labels and weights for the mean of a loss over drawn labels.

    Guaranteed: with at most ten classes the weighted sum of a loss over the result is its mean over images and over
    labels drawn from `probabilities`. With more classes only the ten most probable labels count, with their
    probabilities scaled to sum to one.
    """
    if probabilities.shape != logits.shape:
        raise BronetError(
            f"probabilities must have the shape of the logits {tuple(logits.shape)}, got {tuple(probabilities.shape)}"
        )
    images, classes = logits.shape
    most_probable = probabilities.topk(min(classes, MAX_LABELS), dim=1)
    shares = most_probable.values / most_probable.values.sum(dim=1, keepdim=True)
    repeated = logits[:, None].expand(-1, shares.shape[1], -1).reshape(-1, classes)
    return DrawnLabels(repeated, most_probable.indices.flatten(), shares.flatten() / images)


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


def check_weight(name: str, value: float, *, positive: bool = False) -> None:
    """Raise unless value >= 0, or value > 0 if it must be positive; NaN is neither."""
    if not (value > 0 if positive else value >= 0):
        raise BronetError(f"{name} must be {'positive' if positive else 'at least 0'}, got {value}")
