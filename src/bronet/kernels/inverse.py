"""Inverse Cholesky factors of many small symmetric positive definite matrices, in registers.

Library factorisations of a few hundred matrices of a few hundred rows are limited by latency. Here matrices of up to 64
rows are eliminated in registers, in tiles of 16; `bronet.ortho.spd` combines them into larger ones by
products, and has the torch version. Only lower triangles are read, because an inverse that rounding had made
unsymmetric would lose far more than its own rounding in the next block.
"""

import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

# The chain of dependent steps within a tile is the slow part, and each step is shorter in a smaller tile.
_SIDE = 16


@triton.jit
def _eliminated(M, count, SIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the inverse Cholesky factor of a tile; rows and columns from `count` on are those of the identity."""
    rows = tl.arange(0, SIDE)
    i, j = rows[:, None], rows[None, :]
    pivots = tl.full([SIDE], 1.0, tl.float32)
    for k in range(count):
        column = tl.sum(tl.where(j == k, M, 0.0), axis=1)
        row = tl.sum(tl.where(i == k, M, 0.0), axis=0)
        row = tl.where(rows < k, row, tl.where(rows == k, 1.0, column))
        pivot = tl.sum(tl.where(rows == k, column, 0.0), axis=0)
        pivots = tl.where(rows == k, pivot, pivots)
        scaled = tl.where(rows > k, column * (1.0 / pivot), 0.0)
        M = tl.where((i > k) & (j == k), 0.0, M) - scaled[:, None] * row[None, :]
    M = tl.where(i > j, M, tl.where(i == j, 1.0, 0.0))
    return M / tl.sqrt(pivots)[:, None]


@triton.jit
def _tile(S, n, row_stride, row, column, SIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return a tile of a matrix, which is extended beyond its n rows by the identity."""
    i = row * SIDE + tl.arange(0, SIDE)[:, None]
    j = column * SIDE + tl.arange(0, SIDE)[None, :]
    inside = (i < n) & (j < n)
    return tl.where(inside, tl.load(S + i * row_stride + j, mask=inside, other=0.0), tl.where(i == j, 1.0, 0.0))


@triton.jit
def _store(P, M, n, row_stride, row, column, SIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    i = row * SIDE + tl.arange(0, SIDE)[:, None]
    j = column * SIDE + tl.arange(0, SIDE)[None, :]
    tl.store(P + i * row_stride + j, M, mask=(i < n) & (j < n))


@triton.jit
def _product(A, B):  # type: ignore[no-untyped-def]
    return tl.dot(A, B, input_precision="ieee")


@triton.jit
def _factor_kernel(S, P, n, s_batch, s_row, p_batch, p_row, SIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write the inverse factor M of one matrix of at most 4 SIDE rows, one row of tiles after another.

    Row r of the Cholesky factor is l_rj = (s_rj - sum over k < j of l_rk l_jk') m_jj'. Then m_rr is the inverse factor
    of what is left of s_rr, and m_rj = -m_rr (sum over j <= k < r of l_rk m_kj).
    """
    S += tl.program_id(0).to(tl.int64) * s_batch
    P += tl.program_id(0).to(tl.int64) * p_batch
    m00 = _eliminated(_tile(S, n, s_row, 0, 0, SIDE), tl.minimum(n, SIDE), SIDE)
    _store(P, m00, n, p_row, 0, 0, SIDE)
    if n <= SIDE:
        return

    l10 = _product(_tile(S, n, s_row, 1, 0, SIDE), tl.trans(m00))
    left = _tile(S, n, s_row, 1, 1, SIDE) - _product(l10, tl.trans(l10))
    m11 = _eliminated(left, tl.minimum(n - SIDE, SIDE), SIDE)
    m10 = -_product(m11, _product(l10, m00))
    _store(P, m10, n, p_row, 1, 0, SIDE)
    _store(P, m11, n, p_row, 1, 1, SIDE)
    if n <= 2 * SIDE:
        return

    l20 = _product(_tile(S, n, s_row, 2, 0, SIDE), tl.trans(m00))
    l21 = _product(_tile(S, n, s_row, 2, 1, SIDE) - _product(l20, tl.trans(l10)), tl.trans(m11))
    left = _tile(S, n, s_row, 2, 2, SIDE) - _product(l20, tl.trans(l20)) - _product(l21, tl.trans(l21))
    m22 = _eliminated(left, tl.minimum(n - 2 * SIDE, SIDE), SIDE)
    m20 = -_product(m22, _product(l20, m00) + _product(l21, m10))
    m21 = -_product(m22, _product(l21, m11))
    _store(P, m20, n, p_row, 2, 0, SIDE)
    _store(P, m21, n, p_row, 2, 1, SIDE)
    _store(P, m22, n, p_row, 2, 2, SIDE)
    if n <= 3 * SIDE:
        return

    l30 = _product(_tile(S, n, s_row, 3, 0, SIDE), tl.trans(m00))
    l31 = _product(_tile(S, n, s_row, 3, 1, SIDE) - _product(l30, tl.trans(l10)), tl.trans(m11))
    left = _tile(S, n, s_row, 3, 2, SIDE) - _product(l30, tl.trans(l20)) - _product(l31, tl.trans(l21))
    l32 = _product(left, tl.trans(m22))
    left = _tile(S, n, s_row, 3, 3, SIDE) - _product(l30, tl.trans(l30)) - _product(l31, tl.trans(l31))
    m33 = _eliminated(left - _product(l32, tl.trans(l32)), n - 3 * SIDE, SIDE)
    _store(P, -_product(m33, _product(l30, m00) + _product(l31, m10) + _product(l32, m20)), n, p_row, 3, 0, SIDE)
    _store(P, -_product(m33, _product(l31, m11) + _product(l32, m21)), n, p_row, 3, 1, SIDE)
    _store(P, -_product(m33, _product(l32, m22)), n, p_row, 3, 2, SIDE)
    _store(P, m33, n, p_row, 3, 3, SIDE)


def factor_tiles(S: Float[Tensor, "batch n n"], M: Float[Tensor, "batch n n"]) -> None:
    """Write the lower triangles of the inverse factors of float32 matrices of at most 64 rows; M is zero elsewhere."""
    strides = (S.stride(0), S.stride(1), M.stride(0), M.stride(1))
    _factor_kernel[(S.shape[0],)](S, M, S.shape[-1], *strides, SIDE=_SIDE, num_warps=1)
