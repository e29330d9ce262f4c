"""Maps from a free matrix, real or complex, to a (semi-)orthogonal one: Cayley, LOT and Bjorck.

With Bjorck's, orthogonal kernels by block convolution (BCOP: Li et al. 2019, after Xiao et al. 2018). A k x k kernel is
an orthogonal matrix convolved with k - 1 kernels of 2 x 2 taps, each made of two projections P, Q:

    [[P Q, P (I - Q)], [(I - P) Q, (I - P)(I - Q)]]

whose symbol (P + z (I - P))(Q + w (I - Q)) is unitary for |z| = |w| = 1. Where P and Q are no exact projections but lie
between 0 and I, it is still a contraction, so Bjorck's residual never raises the norm above one.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from bronet.ortho.spd import scale_of

# Newton steps of the published LOT layer, and Bjorck's of the published BCOP layer.
LOT_STEPS = 10
BJORCK_STEPS = 20

# Rounding may make a vanishing eigenvalue of V V* negative. Each of Newton's steps multiplies it by up to 1.5^2, until
# it overflows. Where that could come near one, a shift of a few ulps of the norm keeps eigenvalues positive.
_LOT_GROWTH = 1.5**2
_LOT_GROWN = 0.01
_LOT_SHIFT_ULPS = 8


def cayley(P: Inexact[Tensor, "*batch m n"]) -> Inexact[Tensor, "*batch m n"]:
    """Return a matrix with orthonormal columns (rows, where m < n) by the Cayley transform (Trockman and Kolter 2021).

    Guaranteed for every parameter, up to rounding: I + A with A skew plus positive semidefinite is never singular. It
    reaches no matrix with an eigenvalue -1. Square: (I - A)(I + A)^-1 with A = P - P*. Tall, P = (U, V) stacked: the
    first n columns of the transform of the skew [[U - U*, -V*], [V, 0]], which are ((I - A)(I + A)^-1, -2 V (I + A)^-1)
    with A = U - U* + V*V. An entry beyond eps^(-1/3) is scaled back to that: I + A would be singular to working
    precision.
    """
    m, n = P.shape[-2:]
    if m < n:
        return cayley(P.mH).mH
    largest = torch.finfo(P.real.dtype).eps ** (-1 / 3)
    P = P * (largest / P.abs().amax(dim=(-2, -1), keepdim=True).clamp_min(largest))
    U, V = P[..., :n, :], P[..., n:, :]
    A = U - U.mH + V.mH @ V
    eye = torch.eye(n, dtype=P.dtype, device=P.device)
    # (I - A)(I + A)^-1 = 2 (I + A)^-1 - I, so one inverse serves both parts.
    inverse = torch.linalg.inv_ex(eye + A).inverse
    return torch.cat((2 * inverse - eye, -2 * V @ inverse), dim=-2)


def lot_orthogonal(V: Inexact[Tensor, "*batch m n"], *, steps: int = LOT_STEPS) -> Inexact[Tensor, "*batch m n"]:
    """Return (V V*)^-1/2 V after this many steps of the coupled Newton-Schulz iteration (Xu et al. 2022).

    In exact arithmetic every step is a contraction that tends to a (semi-)orthogonal matrix; how fast depends on the
    condition of V, and a singular V never arrives (App. D.9 of the paper, Figure 13). Nothing here promises
    orthogonality after a given number of steps: measure it. Each matrix is scaled first, which the limit cannot see.
    """
    if V.shape[-2] > V.shape[-1]:
        return lot_orthogonal(V.mH, steps=steps).mH
    V = V / scale_of(V)
    S = V @ V.mH
    size = torch.linalg.matrix_norm(S, keepdim=True).clamp_min(torch.finfo(S.real.dtype).tiny)
    S = S / size
    shift = _LOT_SHIFT_ULPS * torch.finfo(S.real.dtype).eps
    if shift * _LOT_GROWTH**steps > _LOT_GROWN:  # not with the published steps
        S = (S + shift * torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)) / (1 + shift)
    *_, root = inverse_square_roots(S, steps=steps)
    return root @ (V / size.sqrt())


def inverse_square_roots(S: Inexact[Tensor, "*batch m m"], *, steps: int) -> Iterator[Inexact[Tensor, "*batch m m"]]:
    """Yield Z_1, Z_2, ... with Z_k -> S^-1/2, for S of norm at most one: Y <- Y T, Z <- T Z, T = (3 I - Z Y) / 2."""
    eye = torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)
    Y, Z = S, eye.expand_as(S)
    for _ in range(steps):
        T = 1.5 * eye - 0.5 * (Z @ Y)
        Y, Z = Y @ T, T @ Z
        yield Z


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
    eye = torch.eye(n, dtype=core.dtype, device=core.device)
    for P, Q in zip(projections[0::2], projections[1::2], strict=True):
        rows = [torch.stack((left @ Q, left @ (eye - Q)), dim=-1) for left in (P, eye - P)]
        columns = torch.stack(rows, dim=-2).transpose(0, 1)
        # Kernels compose tap by tap, as sums of X[s] Y[t - s]: a convolution whose batch is made of Y's columns.
        composed = torch.nn.functional.conv2d(columns, kernel.flip(-2, -1), padding=kernel.shape[-1] - 1)
        kernel = composed.transpose(0, 1)
    return kernel


def bjorck(P: Float[Tensor, "*batch m n"], *, steps: int = BJORCK_STEPS) -> Float[Tensor, "*batch m n"]:
    """Return P after this many steps, first scaled to norm at most one; m >= n.

    The iteration (Bjorck and Bowie 1971) tends to the nearest matrix with orthonormal columns; a rank-deficient
    one stays rank-deficient. Its polynomial W (3 I - W'W) / 2 maps singular values of [0, 1] into [0, 1], so every
    iterate is a contraction.
    """
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
