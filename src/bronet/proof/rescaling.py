"""A proved norm for a kernel from the weighted absolute row sums of its Gram operator, for images of every size.

For a symmetric G and positive weights w, lambda_max(G) <= max over i of (sum over j of |G_ij| w_j) / w_i. With the
weights that AOL and SLL imply this is one, up to the rounding that is counted here.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from bronet.proof.rounding import gamma, up

# Channels whose patches are held at a time: memory, not accuracy.
_CHANNELS_AT_ONCE = 32


def weighted_sum_norm(kernel: Float[Tensor, "c_out c_in k k"], weights: Float[Tensor, " c_in"]) -> float:
    """Return an upper bound on the norm of the convolution with a float64 kernel, zero-padded or circular, any size.

    The weights decide how tight the bound is, never whether it holds; they must be positive.
    """
    c_out, c_in, k, _ = kernel.shape
    sums = (_absolute_autocorrelation(kernel) @ weights) / weights
    magnitude = kernel.abs()
    # Rounding of the autocorrelation: gamma of the sums' length times the autocorrelation of |K|, summed alike.
    per_output = magnitude.sum((2, 3))
    absolute = (per_output.mT @ (per_output @ weights)) / weights
    length = c_out * k * k
    exact = sums + gamma(length) * absolute
    further = gamma(c_in * (2 * k - 1) ** 2 + length + 4)  # the sums over taps and channels, and the division
    return up(math.sqrt(float((exact * (1 + further)).max())))


def _absolute_autocorrelation(kernel: Float[Tensor, "c_out c_in k k"]) -> Float[Tensor, "c_in c_in"]:
    """Return the sum over taps of |autocorrelation|, through matrix products, whose rounding is known."""
    k = kernel.shape[-1]
    columns = kernel.transpose(0, 1)
    flat = columns.flatten(1)
    parts = [
        (flat @ F.unfold(some, k, padding=k - 1)).abs().sum(-1)  # (some of i, j)
        for some in columns.split(_CHANNELS_AT_ONCE)
    ]
    return torch.cat(parts)
