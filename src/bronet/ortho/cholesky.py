"""The Cholesky map W = L^-1 V with L L' = V V' + e I: a Gram-Schmidt of V's rows, for dense layers and the neck.

W W' = I up to the ridge, which only shrinks: the singular values s / sqrt(s^2 + e) stay below one. A matrix with more
rows than columns is mapped through its transpose.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from bronet.ortho.spd import CHOLESKY_RIDGE, unit_scaled
from bronet.ortho.spectrum import with_ridge


def cholesky_orthogonal(
    V: Float[Tensor, "*batch m n"], *, ridge: float = CHOLESKY_RIDGE
) -> Float[Tensor, "*batch m n"]:
    """Return the (semi-)orthogonal L^-1 V; norm at most one up to rounding."""
    if V.shape[-2] > V.shape[-1]:
        return cholesky_orthogonal(V.mT, ridge=ridge).mT
    V = unit_scaled(V)
    L = torch.linalg.cholesky_ex(with_ridge(V @ V.mT, ridge)).L
    return torch.linalg.solve_triangular(L, V, upper=False)
