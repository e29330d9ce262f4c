"""The rescaling of AOL and SLL: absolute row sums of a convolution's Gram operator.

The Gram operator of a convolution is a convolution with the kernel's autocorrelation, so its absolute row sums do not
depend on the image. For any positive weights q, the diagonal T of the weighted sums dominates the Gram operator, and
W T^-1/2 has norm at most one (Prach and Lampert 2022 with q = 1; Araujo et al. 2023).
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bronet.ortho.spd import unit_scaled


def absolute_sums(kernel: Float[Tensor, "c_out c_in k k"], q: Float[Tensor, " c_in"]) -> Float[Tensor, " c_in"]:
    """Return T_i = sum over j and shifts t of |G[i, j, t]| q_j / q_i, G the kernel's autocorrelation.

    G[i, j, t] is the sum over outputs and taps s of K[o, i, s] K[o, j, s + t]: one product for each shift, and none for
    -t, whose matrix is the transpose. As one convolution it would take the library's workspace of many GiB.
    """
    k = kernel.shape[-1]
    taps = kernel.permute(2, 3, 0, 1)
    total = torch.zeros_like(q)
    for down, right in _half_of_the_shifts(k):
        first = taps[: k - down, max(0, -right) : k - max(0, right)].flatten(0, 2)
        second = taps[down:, max(0, right) : k + min(0, right)].flatten(0, 2)
        magnitude = (first.mT @ second).abs()
        total = total + magnitude @ q
        if (down, right) != (0, 0):
            total = total + magnitude.mT @ q
    return total / q


def _half_of_the_shifts(k: int) -> list[tuple[int, int]]:
    """Return one of each pair t and -t of shifts under which a k x k kernel meets itself."""
    return [(down, right) for down in range(k) for right in range(1 - k, k) if down > 0 or right >= 0]


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
