"""Bjorck's iteration for the nearest matrix with orthonormal columns (Bjorck and Bowie 1971), as BCOP uses it.

The polynomial W (3 I - W'W) / 2 maps singular values of [0, 1] into [0, 1], so every iterate is a contraction
and the limit is orthogonal; a rank-deficient parameter stays rank-deficient.
"""

import torch
from jaxtyping import Float
from torch import Tensor

# Steps of the published layer.
BJORCK_STEPS = 20


def bjorck(P: Float[Tensor, "*batch m n"], *, steps: int = BJORCK_STEPS) -> Float[Tensor, "*batch m n"]:
    """Return P after this many steps, first scaled to norm at most one; m >= n."""
    # Each matrix by its largest entry: a constant to the gradient, as the result does not change with the scale.
    tiny = torch.finfo(P.dtype).tiny
    W = P / P.detach().abs().amax((-2, -1), keepdim=True).clamp_min(tiny)
    # sqrt(|W|_1 |W|_inf) bounds the spectral norm.
    columns, rows = W.abs().sum(-2).amax(-1), W.abs().sum(-1).amax(-1)
    size = (columns * rows).sqrt().clamp_min(tiny)
    W = W / size[..., None, None]
    for _ in range(steps):
        W = 1.5 * W - 0.5 * W @ (W.mT @ W)
    return W
