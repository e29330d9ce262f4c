"""S^-1 = M'M with M the inverse of the Cholesky factor of S, by blocks down to tiles: how a GPU inverts.

With L the lower left block of the Cholesky factor, L = B M11', C = S22 - L L' and M21 = -M22 L M11. No row of L is
longer than the root of its diagonal entry of S, so the Schur complement C is as accurate as S. Formed as
S22 - B S11^-1 B' it loses the condition of S a second time, and more where rounding makes S11^-1 unsymmetric: at a
condition of 1000 reflectors built so had norms of 10 in float32 and hundreds in TF32, and training ended in NaN.
"""

from contextlib import nullcontext

import torch
from jaxtyping import Float
from torch import Tensor

from bronet.ortho.numerics import float32_products

TILE = 64

# Rounding in S and in its elimination is a few ulps of its norm; moved by that much, S stays positive definite.
_ROUNDING_ULPS = 4


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
        _factor_tiles(S, M)
        return
    m = TILE * -(-n // (2 * TILE))  # whole tiles first; the rest is the smaller part
    M11, M22 = M[:, :m, :m], M[:, m:, m:]
    _factor_into(S[:, :m, :m], M11)
    L = S[:, m:, :m] @ M11.mT
    _factor_into(torch.baddbmm(S[:, m:, m:], L, L.mT, alpha=-1), M22)
    M[:, m:, :m] = (M22 @ (L @ M11)).neg_()


def _factor_tiles(S: Tensor, M: Tensor) -> None:
    if S.is_cuda and S.dtype == torch.float32:
        from bronet.kernels.inverse import factor_tiles

        factor_tiles(S, M)
    else:
        M.copy_(eliminated(S))


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
