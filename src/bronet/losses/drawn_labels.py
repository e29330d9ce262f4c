"""Labels that are drawn from probabilities: the mean of any loss over them, as a weighted sum.

A label that nobody is sure of is better said as probabilities. The mean over drawn labels is linear in them and needs
no change of the loss: an image counts once for each label it may have, with that label's probability as its weight.
"""

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from bronet.errors import BronetError

MOST_LABELS = 10
"""Labels of an image that count, the likeliest ones: a loss of many classes would be asked for each of them."""


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
    likeliest = probabilities.topk(min(classes, MOST_LABELS), dim=1)
    shares = likeliest.values / likeliest.values.sum(dim=1, keepdim=True)
    repeated = logits[:, None].expand(-1, shares.shape[1], -1).reshape(-1, classes)
    return DrawnLabels(repeated, likeliest.indices.flatten(), shares.flatten() / images)
