"""Bounds for I - 2 D' Q Q' D with the stored factor Q and the stored Fourier basis D.

Q'Q is positive semidefinite, so the operator is symmetric with eigenvalues in [1 - 2 lambda, 1], where lambda bounds
lambda_max(Q'Q) lambda_max(D'D): its norm is at most max(1, 2 lambda - 1). Cutting channels or pixels is a compression,
which cannot raise a norm.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from bronet.errors import BronetError
from bronet.ortho.spd import unit_scaled, with_ridge
from bronet.proof.rounding import TRIGONOMETRIC_ULPS, UNIT_ROUNDOFF, gamma, up
from bronet.proof.spectral import gram_error, largest_eigenvalue

# Any grid a layer can be given is narrower than this; its Fourier basis is then orthonormal to within this defect: N^4
# entries of size sqrt(2)/N, each wrong by TRIGONOMETRIC_ULPS of itself at most, move D'D by 2 sqrt(2) N times that.
_WIDEST_GRID = 2**16
_BASIS_DEFECT = 4 * TRIGONOMETRIC_ULPS * UNIT_ROUNDOFF * _WIDEST_GRID


def orthonormal_factor(
    A: Float[Tensor, "*batch m n"], S: Float[Tensor, "*batch n n"], *, ridge: float
) -> Float[Tensor, "*batch m n"]:
    """Return Q = A L^-T with L L' = S + e I, where S = A'A: orthonormal columns up to ridge and rounding."""
    L, info = torch.linalg.cholesky_ex(with_ridge(S, ridge))
    if bool(info.any()):
        raise BronetError("a reflector's parameters must be finite; they hold NaN or infinity")
    return torch.linalg.solve_triangular(L, A.mT, upper=False).mT


def dense_factor(V: Float[Tensor, "c n"], *, ridge: float) -> Float[Tensor, "c n"]:
    """Return the orthonormal factor of a dense reflector."""
    V = unit_scaled(V)
    return orthonormal_factor(V, V.mT @ V, ridge=ridge)


def factor_norm(Q: Float[Tensor, "*batch m n"]) -> float:
    """Return a proved upper bound on lambda_max(Q'Q) over the batch."""
    return largest_eigenvalue(Q.mT @ Q, gram_error(Q))


def reflector_norm(squared: float) -> float:
    """Return max(1, 2 lambda - 1) for lambda = `squared`, an upper bound on the squared norm of Q'D."""
    return max(1.0, up(2 * squared - 1))


def a_priori_reflector_norm(c: int, n: int, *, ridge: float) -> float:
    """Return a bound that holds for every parameter and every grid, without looking at either.

    From the backward errors of the three steps that make Q (Gram matrix, Cholesky, triangular solve): once the ridge
    outweighs the first two, L L' dominates A'A, and the third moves |Q| by kappa at most. Looser than the bound for a
    known grid, and it assumes that the solver is row-wise backward stable (substitution).
    """
    relative = ridge / (2 * n)
    defect = gamma(2 * c) + 4 * gamma(2 * n + 2)
    if relative <= 2 * defect:
        raise BronetError(
            f"ridge must exceed the rounding of a {2 * c} x {2 * n} Gram matrix, got {ridge}; pass input_size"
        )
    condition = (1 + ridge + 2 * n * defect) / (relative - defect)
    kappa = gamma(2 * n) * math.sqrt(2 * n * condition)
    return reflector_norm(up((1 + _BASIS_DEFECT) / (1 - kappa) ** 2))
