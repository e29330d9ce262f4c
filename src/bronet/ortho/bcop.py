"""Orthogonal kernels by block convolution (BCOP: Li et al. 2019, after Xiao et al. 2018).

A k x k kernel is an orthogonal matrix convolved with k - 1 kernels of 2 x 2 taps, each made of two projections P, Q:

    [[P Q, P (I - Q)], [(I - P) Q, (I - P)(I - Q)]]

whose symbol (P + z (I - P))(Q + w (I - Q)) is unitary for |z| = |w| = 1. Where P and Q are no exact projections but lie
between 0 and I, it is still a contraction, so Bjorck's residual never raises the norm above one.

Bjorck's iteration (Bjorck and Bowie 1971) tends to the nearest matrix with orthonormal columns. Its polynomial
W (3 I - W'W) / 2 maps singular values of [0, 1] into [0, 1], so every iterate is a contraction; a rank-deficient
parameter stays rank-deficient.
"""

import torch
from jaxtyping import Float
from torch import Tensor

# Steps of the published layer.
BJORCK_STEPS = 20


def bcop_kernel(
    core: Float[Tensor, "m n"], halves: Float[Tensor, "pairs c r"] | None, *, steps: int
) -> Float[Tensor, "m n k k"]:
    """Return the kernel of k = pairs / 2 + 1 taps per axis: c = min(m, n); two of the `halves` make one factor.

    The core is orthogonalised to (semi-)orthogonal; the factors act on the smaller side. Without halves k = 1.
    """
    m, n = core.shape
    if m < n:
        return bcop_kernel(core.mT, halves, steps=steps).transpose(0, 1)
    kernel = bjorck(core, steps=steps)[..., None, None]
    if halves is None:
        return kernel
    R = bjorck(halves, steps=steps)
    projections = R @ R.mT
    for P, Q in zip(projections[0::2], projections[1::2], strict=True):
        kernel = block_convolution(kernel, projection_factor(P, Q))
    return kernel


def projection_factor(P: Float[Tensor, "c c"], Q: Float[Tensor, "c c"]) -> Float[Tensor, "c c 2 2"]:
    """Return the 2 x 2 kernel of two projections."""
    eye = torch.eye(P.shape[-1], dtype=P.dtype, device=P.device)
    rows = [torch.stack((left @ Q, left @ (eye - Q)), dim=-1) for left in (P, eye - P)]
    return torch.stack(rows, dim=-2)


def block_convolution(X: Float[Tensor, "m n kx kx"], Y: Float[Tensor, "n p ky ky"]) -> Float[Tensor, "m p kz kz"]:
    """Return the kernel of the composition of two convolutions."""
    # Tap by tap Z[t] = sum over s of X[s] Y[t - s]: a convolution whose batch is made of Y's columns.
    Z = torch.nn.functional.conv2d(Y.transpose(0, 1), X.flip(-2, -1), padding=X.shape[-1] - 1)
    return Z.transpose(0, 1)


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
