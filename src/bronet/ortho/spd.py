"""Inverses of batches of symmetric positive definite matrices, and the ridge that keeps them definite.

The ridge only shrinks: with it a reflector's singular values 1 - 2 s^2 / (s^2 + e) stay in (-1, 1], so no certificate
depends on it being small. Without it a rank-deficient V has no reflector at all.
"""

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from bronet.ortho.inverse_factor import inverse_by_blocks

# Relative ridges of the published experiments, each times the mean diagonal of the Gram matrix.
BRO_RIDGE = 1e-7
SEMI_ORTHOGONAL_RIDGE = 1e-5
CHOLESKY_RIDGE = 1e-3

# A relative ridge below a few units in the last place is lost in the Gram matrix's own rounding.
_LEAST_RIDGE_ULPS = 8


def ridge_of(diagonal: Float[Tensor, "*batch n"], relative: float, dtype: torch.dtype) -> Float[Tensor, "*batch"]:
    """Return the ridge: `relative` times the mean diagonal, at least a few ulps of it, and never zero.

    The absolute floor, eps^2, supposes parameters scaled to a largest entry of one: below it a Gram matrix
    is rounding noise. It is what makes V = 0 the identity instead of a failed factorisation.
    """
    return diagonal.mean(-1) * _at_least_ulps(relative, dtype) + torch.finfo(dtype).eps ** 2


def ridge_slope(relative: float, n: int, dtype: torch.dtype) -> float:
    """Return the derivative of the ridge with respect to each of the n diagonal entries."""
    return _at_least_ulps(relative, dtype) / n


def _at_least_ulps(relative: float, dtype: torch.dtype) -> float:
    return max(relative, _LEAST_RIDGE_ULPS * torch.finfo(dtype).eps)


def with_ridge(S: Inexact[Tensor, "*batch n n"], relative: float) -> Inexact[Tensor, "*batch n n"]:
    """Return S + e I, S real symmetric or complex Hermitian."""
    diagonal = S.diagonal(dim1=-2, dim2=-1)
    ridge = ridge_of(diagonal.real, relative, S.real.dtype)
    return S.diagonal_scatter(diagonal + ridge[..., None], dim1=-2, dim2=-1)


def add_ridge(S: Float[Tensor, "*batch n n"], relative: float) -> None:
    """Add e I to S in place."""
    diagonal = S.diagonal(dim1=-2, dim2=-1)
    diagonal += ridge_of(diagonal, relative, S.dtype)[..., None]


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
