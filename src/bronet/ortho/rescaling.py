"""The rescaling of AOL and SLL: absolute row sums of a convolution's Gram operator.

The Gram operator of a convolution is a convolution with the kernel's autocorrelation, so its absolute row sums do not
depend on the image. For any positive weights q, the diagonal T of the weighted sums dominates the Gram operator, and
W T^-1/2 has norm at most one (Prach and Lampert 2022 with q = 1; Araujo et al. 2023).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from bronet.ortho.spd import unit_scaled


def autocorrelation(kernel: Float[Tensor, "c_out c_in k k"]) -> Float[Tensor, "c_in c_in taps taps"]:
    """Return G[i, j, t] = sum over outputs and taps s of K[o, i, s] K[o, j, s + t], 2 k - 1 taps per axis."""
    columns = kernel.transpose(0, 1)
    return F.conv2d(columns, columns, padding=kernel.shape[-1] - 1)


def absolute_sums(kernel: Float[Tensor, "c_out c_in k k"], q: Float[Tensor, " c_in"]) -> Float[Tensor, " c_in"]:
    """Return T_i = sum over j and taps of |G[i, j]| q_j / q_i."""
    return (autocorrelation(kernel).abs().sum((2, 3)) @ q) / q


class Rescaled(NamedTuple):
    """A kernel of norm at most one, and the positive weights with which its weighted absolute sums are one."""

    kernel: Float[Tensor, "c_out c_in k k"]
    weights: Float[Tensor, " c_in"]


def rescaled(kernel: Float[Tensor, "c_out c_in k k"], q: Float[Tensor, " c_in"]) -> Rescaled:
    """Return K T^-1/2, of norm at most one up to rounding; an input channel without weights stays zero."""
    kernel = unit_scaled(kernel)
    # The floor is what rounding leaves of a vanishing sum; a larger T only shrinks.
    T = absolute_sums(kernel, q) + torch.finfo(kernel.dtype).eps ** 2
    return Rescaled(kernel * T.rsqrt()[:, None, None], q * T.sqrt())
