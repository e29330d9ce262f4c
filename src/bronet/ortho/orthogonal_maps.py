"""Maps from a free matrix, real or complex, to a (semi-)orthogonal one: Cholesky, Cayley, LOT and Bjorck.

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
from torch.autograd.function import once_differentiable

from bronet.ortho.products import is_traced
from bronet.ortho.spd import CHOLESKY_RIDGE, factored, require_operators, ridge_slope, scale_of, unit_scaled, with_ridge

# Newton steps of the published LOT layer, and Bjorck's of the published BCOP layer.
LOT_STEPS = 10
BJORCK_STEPS = 20

# Rounding may make a vanishing eigenvalue of V V* negative. Each of Newton's steps multiplies it by up to 1.5^2, until
# it overflows. Where that could come near one, a shift of a few ulps of the norm keeps eigenvalues positive.
_LOT_GROWTH = 1.5**2
_LOT_GROWN = 0.01
_LOT_SHIFT_ULPS = 8


# A Cholesky map has no norm above one as long as its Gram matrix stays positive definite: with a relative ridge of this
# many ulps for each row it does.
_LEAST_CHOLESKY_ULPS = 4


class _CholeskyMap(torch.autograd.Function):
    """V (m <= n) -> L^-1 V with the backward pass of `cholesky_orthogonal`'s docstring."""

    @staticmethod
    def forward(ctx, V: Tensor, ridge: float) -> Tensor:  # type: ignore[no-untyped-def, override]
        scale = scale_of(V)
        V = V / scale
        inverse = _inverse_of_factor(V, ridge)
        W = inverse @ V
        ctx.save_for_backward(V, W, inverse, scale)
        ctx.ridge = ridge
        return W

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def, override]
        V, W, inverse, scale = ctx.saved_tensors
        G = grads[0]
        K = G @ W.mH
        below = K.tril(-1)
        B = below + below.mH + torch.diag_embed(K.diagonal(dim1=-2, dim2=-1).real)
        gV = inverse.mH @ (G - B @ W)
        # The ridge follows the mean diagonal of V V*; its gradient is -tr(L^-* B L^-1) / 2 times twice V's share.
        slope = ridge_slope(ctx.ridge, W.shape[-2], W.real.dtype)
        if slope > torch.finfo(W.dtype).eps:  # below that it is lost in rounding
            gV = gV - slope * (inverse.conj() * (B @ inverse)).real.sum((-2, -1), keepdim=True) * V
        return gV / scale, None


def _inverse_of_factor(V: Inexact[Tensor, "*batch m n"], ridge: float) -> Inexact[Tensor, "*batch m m"]:
    """Return L^-1."""
    require_operators()
    S = with_ridge(V @ V.mH, ridge)
    outweighs = ridge >= _LEAST_CHOLESKY_ULPS * torch.finfo(S.real.dtype).eps * S.shape[-1]
    L = torch.linalg.cholesky_ex(S).L if outweighs else factored(S)[0]
    eye = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device).expand(L.shape)
    return torch.linalg.solve_triangular(L, eye, upper=False)


def cholesky_orthogonal(
    V: Inexact[Tensor, "*batch m n"], *, ridge: float = CHOLESKY_RIDGE
) -> Inexact[Tensor, "*batch m n"]:
    """Return L^-1 V with L L* = V V* + e I: a Gram-Schmidt of V's rows, or of its columns where it has more rows.

    W W* = I up to the ridge, which only shrinks: the singular values s / sqrt(s^2 + e) stay below one. Differentiable
    once. Triangular solves with many right-hand sides are slow on GPUs, so the small factor is inverted and multiplied.
    With B = sym(tril(G W*)), the lower triangle of G W* mirrored (its diagonal real), the gradient of V for a gradient
    G of W is L^-* (G - B W), up to the ridge's own small share.
    """
    if V.shape[-2] > V.shape[-1]:
        return cholesky_orthogonal(V.mH, ridge=ridge).mH
    if is_traced():
        V = unit_scaled(V)
        return _inverse_of_factor(V, ridge) @ V
    W: Tensor = _CholeskyMap.apply(V, ridge)
    return W


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
