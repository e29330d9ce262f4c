"""Kernels rescaled to a norm that is known for every image size: by absolute sums for AOL and SLL, skew ones for SOC.

The Gram operator of a convolution is a convolution with the kernel's autocorrelation, so its absolute row sums do not
depend on the image. For any positive weights q, the diagonal T of the weighted sums dominates the Gram operator, and
W T^-1/2 has norm at most one (Prach and Lampert 2022 with q = 1; Araujo et al. 2023).

A kernel minus its own transpose (channels exchanged, taps flipped) is a skew-symmetric operator on zero-padded and on
circular images alike, so its exponential is orthogonal. The fantastic-four bound keeps its norm small enough for a few
terms of the series (Singla and Feizi 2021).
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bronet.ortho.spd import unit_scaled

# Squarings of the Gram matrix: the bound is then loose by at most rank^(1/128), six percent for 1536 rows.
_GRAM_STEPS = 6


def absolute_sums(kernel: Float[Tensor, "c_out c_in k k"], q: Float[Tensor, " c_in"]) -> Float[Tensor, " c_in"]:
    """Return T_i = sum over j and shifts t of |G[i, j, t]| q_j / q_i, G the kernel's autocorrelation.

    G[i, j, t] is the sum over outputs and taps s of K[o, i, s] K[o, j, s + t]: one product for each shift under which
    the kernel meets itself, none for -t, whose matrix is the transpose. One convolution would take GiB of workspace.
    """
    k = kernel.shape[-1]
    taps = kernel.permute(2, 3, 0, 1)
    total = torch.zeros_like(q)
    half = [(down, right) for down in range(k) for right in range(1 - k, k) if down > 0 or right >= 0]
    for down, right in half:
        first = taps[: k - down, max(0, -right) : k - max(0, right)].flatten(0, 2)
        second = taps[down:, max(0, right) : k + min(0, right)].flatten(0, 2)
        magnitude = (first.mT @ second).abs()
        total = total + magnitude @ q
        if (down, right) != (0, 0):
            total = total + magnitude.mT @ q
    return total / q


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


def skew_kernel(M: Float[Tensor, "c c k k"]) -> Float[Tensor, "c c k k"]:
    """Return M minus its transpose, scaled to a fantastic-four bound of k, the kernel's size, which must be odd.

    Guaranteed: skew to the last bit, zero where M is symmetric. The norm is at most k up to rounding.
    """
    M = unit_scaled(M)
    skew = M - M.transpose(0, 1).flip(-2, -1)
    size = fantastic_four(skew) / M.shape[-1]
    return skew / torch.where(size > torch.finfo(M.dtype).tiny, size, 1.0)  # zero stays zero, gradients finite


def fantastic_four(kernel: Float[Tensor, "m n kh kw"]) -> Float[Tensor, ""]:
    """Return sqrt(kh kw) times the least norm of four reshapings: a bound on the convolution of any image size.

    Each norm is bounded from above by squaring its Gram matrix (Delattre et al. 2023), without state; the gradient is
    that of the norm itself, through its leading singular vectors.
    """
    taps = math.sqrt(kernel.shape[-1] * kernel.shape[-2])
    return taps * torch.stack([_norm_from_above(R) for R in reshapings(kernel)]).min()


def reshapings(kernel: Float[Tensor, "m n kh kw"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the kernel as four matrices: each axis of taps goes to the rows or to the columns."""
    by_height, by_width = kernel.permute(0, 2, 1, 3), kernel.permute(0, 3, 1, 2)
    return (
        by_height.flatten(2, 3).flatten(0, 1),
        by_width.flatten(2, 3).flatten(0, 1),
        kernel.flatten(1),
        kernel.permute(1, 0, 2, 3).flatten(1),
    )


def _norm_from_above(R: Float[Tensor, "m n"]) -> Float[Tensor, ""]:
    """Return an upper bound (up to rounding) on the spectral norm, with the norm's gradient."""
    tall, tiny = R.shape[0] >= R.shape[1], torch.finfo(R.dtype).tiny
    with torch.no_grad():
        bound, v = _gram_iteration(R if tall else R.mT)
        u = R @ v if tall else R.mT @ v
        u = u / u.norm().clamp_min(tiny)
    estimate = u @ R @ v if tall else v @ R @ u
    return bound * estimate / estimate.detach().clamp_min(tiny)


def _gram_iteration(R: Float[Tensor, "m n"]) -> tuple[Float[Tensor, ""], Float[Tensor, " n"]]:
    """Return |R'R|_F^(1/2) refined by squarings, always an upper bound of |R|, and a leading right singular vector."""
    tiny = torch.finfo(R.dtype).tiny
    G = R.mT @ R
    log_scale = torch.zeros((), dtype=R.dtype, device=R.device)
    for _ in range(_GRAM_STEPS):
        size = G.norm().clamp_min(tiny)
        G = G / size
        log_scale = 2 * (log_scale + size.log())
        G = G @ G
    power = 2.0 ** (_GRAM_STEPS + 1)
    bound = ((log_scale + G.norm().clamp_min(tiny).log()) / power).exp()
    columns = G.norm(dim=0)
    v = G.index_select(1, columns.argmax().view(1))[:, 0]  # the columns all tend to the leading vector
    return bound, v / v.norm().clamp_min(tiny)
