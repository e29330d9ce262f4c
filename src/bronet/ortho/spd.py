"""Inverses of batches of symmetric positive definite matrices, the ridge that keeps them definite, and Cholesky's map.

The ridge only shrinks: with it a reflector's singular values 1 - 2 s^2 / (s^2 + e) stay in (-1, 1], so no certificate
depends on it being small. Without it a rank-deficient V has no reflector at all.

A GPU inverts by blocks down to tiles: S^-1 = M'M with M the inverse of the Cholesky factor of S. With L the lower left
block of that factor, L = B M11', C = S22 - L L' and M21 = -M22 L M11. No row of L is longer than the root of its
diagonal entry of S, so the Schur complement C is as accurate as S. Formed as S22 - B S11^-1 B' it loses the condition
of S a second time, and more where rounding makes S11^-1 unsymmetric: at a condition of 1000 reflectors built so had
norms of 10 in float32 and hundreds in TF32, and training ended in NaN.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

# Relative ridges of the published experiments, each times the mean diagonal of the Gram matrix.
BRO_RIDGE = 1e-7
SEMI_ORTHOGONAL_RIDGE = 1e-5
CHOLESKY_RIDGE = 1e-3

# A relative ridge below a few units in the last place is lost in the Gram matrix's own rounding.
_LEAST_RIDGE_ULPS = 8

TILE = 64

# Rounding in S and in its elimination is a few ulps of its norm; moved by that much, S stays positive definite.
_ROUNDING_ULPS = 4


def ridge_slope(relative: float, n: int, dtype: torch.dtype) -> float:
    """Return the derivative of the ridge with respect to each of the n diagonal entries."""
    return _at_least_ulps(relative, dtype) / n


def _at_least_ulps(relative: float, dtype: torch.dtype) -> float:
    return max(relative, _LEAST_RIDGE_ULPS * torch.finfo(dtype).eps)


def with_ridge(S: Inexact[Tensor, "*batch n n"], relative: float) -> Inexact[Tensor, "*batch n n"]:
    """Return S + e I, S real symmetric or complex Hermitian; see `add_ridge`."""
    S = S.clone()
    add_ridge(S, relative)
    return S


def add_ridge(S: Inexact[Tensor, "*batch n n"], relative: float) -> None:
    """Add e I to S in place: `relative` times the mean diagonal, at least a few ulps of it, and never zero.

    The absolute floor, eps^2, supposes parameters scaled to a largest entry of one: below it a Gram matrix
    is rounding noise. It is what makes V = 0 the identity instead of a failed factorisation.
    """
    diagonal, dtype = S.diagonal(dim1=-2, dim2=-1), S.real.dtype
    ridge = diagonal.real.mean(-1) * _at_least_ulps(relative, dtype) + torch.finfo(dtype).eps ** 2
    diagonal += ridge[..., None]


def unit_scaled(V: Tensor) -> Tensor:
    """Return V divided by its largest absolute entry, which no reflector or Cholesky map can see.

    These maps do not change under V -> a V, so the scale is a constant to the gradient as well. It keeps V'V
    away from overflow and underflow for weights of any magnitude.
    """
    return V / scale_of(V)


def scale_of(V: Tensor) -> Tensor:
    """Return the largest absolute entry of V, never zero, as a constant."""
    return V.detach().abs().amax().clamp_min(torch.finfo(V.real.dtype).tiny)


class _SymmetricInverse(torch.autograd.Function):
    """S^-1 through Cholesky. Backward is two products, -P G P, instead of a differentiated factorisation."""

    @staticmethod
    def forward(ctx, S: Tensor) -> Tensor:  # type: ignore[no-untyped-def, override]
        if S.is_cuda and S.dtype == torch.float32:
            P = inverse_by_blocks(S.reshape(-1, *S.shape[-2:])).view(S.shape)
        else:
            P = torch.cholesky_inverse(torch.linalg.cholesky_ex(S).L)
        ctx.save_for_backward(P)
        return P

    @staticmethod
    def backward(ctx, *grads: Tensor) -> Tensor:  # type: ignore[no-untyped-def, override]
        (P,) = ctx.saved_tensors
        return -(P @ grads[0] @ P)


def symmetric_inverse(S: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """Return the inverse of symmetric positive definite matrices, differentiable once.

    A matrix that is not positive definite gives NaN or garbage, without a synchronising check: callers add a ridge.
    """
    inverse: Tensor = _SymmetricInverse.apply(S)
    return inverse


def inverse_by_blocks(S: Float[Tensor, "batch n n"]) -> Float[Tensor, "batch n n"]:
    """Return (S + d I)^-1 with d a few ulps of the norm of S, so that S may be indefinite by its own rounding.

    M is computed in float32 proper. Only its product with itself may use TF32, if torch is set so.
    """
    rounding = torch.linalg.matrix_norm(S) * (_ROUNDING_ULPS * torch.finfo(S.dtype).eps)
    diagonal = S.diagonal(dim1=-2, dim2=-1) + rounding[:, None]
    M = inverse_factor(S.diagonal_scatter(diagonal, dim1=-2, dim2=-1))
    return M.mT @ M


def inverse_factor(S: Float[Tensor, "batch n n"]) -> Float[Tensor, "batch n n"]:
    """Return the lower triangular M with M'M = S^-1; only the lower triangle of S is read."""
    M = torch.zeros_like(S)
    # torch.compile cannot change the setting; the caller's stays.
    with nullcontext() if torch.compiler.is_compiling() else float32_products(tf32=False):
        _factor_into(S, M)
    return M


def _factor_into(S: Tensor, M: Tensor) -> None:
    n = S.shape[-1]
    if n <= TILE:
        if S.is_cuda and S.dtype == torch.float32:
            from bronet.kernels.inverse import factor_tiles

            factor_tiles(S, M)
        else:
            M.copy_(eliminated(S))
        return
    m = TILE * -(-n // (2 * TILE))  # whole tiles first; the rest is the smaller part
    M11, M22 = M[:, :m, :m], M[:, m:, m:]
    _factor_into(S[:, :m, :m], M11)
    L = S[:, m:, :m] @ M11.mT
    _factor_into(torch.baddbmm(S[:, m:, m:], L, L.mT, alpha=-1), M22)
    M[:, m:, :m] = (M22 @ (L @ M11)).neg_()


def eliminated(S: Float[Tensor, "batch n n"]) -> Float[Tensor, "batch n n"]:
    """Return the inverse factor of small matrices by elimination in place: the twin of the kernel.

    After step k, columns up to k hold the inverse of the unit lower triangular factor, columns behind it what is left
    of S, whose row k is its column k.
    """
    M, pivots = S.clone(), S.new_ones(S.shape[:-1])
    for k in range(S.shape[-1]):
        pivots[:, k], column = M[:, k, k], M[:, k + 1 :, k].clone()
        row = torch.cat((M[:, k, :k], torch.ones_like(M[:, k, :1]), column), dim=-1)
        M[:, k + 1 :, k] = 0
        M[:, k + 1 :] -= (column / pivots[:, k, None])[:, :, None] * row[:, None, :]
        M[:, k, k] = 1
    return M.tril() * pivots.rsqrt()[:, :, None]


@contextmanager
def float32_products(*, tf32: bool) -> Iterator[None]:
    """Let float32 products use TF32 inside, or not; what was set before returns afterwards."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


class _CholeskyMap(torch.autograd.Function):
    """V (m <= n) -> L^-1 V with the backward pass of `cholesky_orthogonal`'s docstring."""

    @staticmethod
    def forward(ctx, V: Tensor, ridge: float) -> Tensor:  # type: ignore[no-untyped-def, override]
        scale = scale_of(V)
        V = V / scale
        L = torch.linalg.cholesky_ex(with_ridge(V @ V.mH, ridge)).L
        eye = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device).expand(L.shape)
        inverse = torch.linalg.solve_triangular(L, eye, upper=False)
        W = inverse @ V
        ctx.save_for_backward(V, W, inverse, scale)
        ctx.ridge = ridge
        return W

    @staticmethod
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
    W: Tensor = _CholeskyMap.apply(V, ridge)
    return W
