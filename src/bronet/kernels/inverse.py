"""Inverse Cholesky factors of many small symmetric positive definite matrices, in registers.

Library factorisations of a few hundred matrices of a few hundred rows are bound by latency. Here matrices of up to 64
rows are eliminated in registers, in two tiles; larger ones are put together by products (`bronet.ortho.inverse_factor`,
which also holds the torch twin). Only lower triangles are read: an inverse that rounding had made unsymmetric would
lose far more than its own rounding in the next block.
"""

import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

_HALF = 32


@triton.jit
def _eliminated(M, count, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the inverse Cholesky factor of a tile; rows and columns from `count` on are those of the identity."""
    rows = tl.arange(0, HALF)
    i, j = rows[:, None], rows[None, :]
    pivots = tl.full([HALF], 1.0, tl.float32)
    for k in range(count):
        column = tl.sum(tl.where(j == k, M, 0.0), axis=1)
        row = tl.sum(tl.where(i == k, M, 0.0), axis=0)
        row = tl.where(rows < k, row, tl.where(rows == k, 1.0, column))
        pivot = tl.sum(tl.where(rows == k, column, 0.0), axis=0)
        pivots = tl.where(rows == k, pivot, pivots)
        scaled = tl.where(rows > k, column / pivot, 0.0)
        M = tl.where((i > k) & (j == k), 0.0, M) - scaled[:, None] * row[None, :]
    M = tl.where(i > j, M, tl.where(i == j, 1.0, 0.0))
    return M / tl.sqrt(pivots)[:, None]


@triton.jit
def _load_tile(S, n, row_stride, top, left, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return a tile of a matrix that continues beyond its n rows as the identity."""
    i = top + tl.arange(0, HALF)[:, None]
    j = left + tl.arange(0, HALF)[None, :]
    inside = (i < n) & (j < n)
    return tl.where(inside, tl.load(S + i * row_stride + j, mask=inside, other=0.0), tl.where(i == j, 1.0, 0.0))


@triton.jit
def _store_tile(P, M, n, row_stride, top, left, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    i = top + tl.arange(0, HALF)[:, None]
    j = left + tl.arange(0, HALF)[None, :]
    tl.store(P + i * row_stride + j, M, mask=(i < n) & (j < n))


@triton.jit
def _factor_kernel(S, P, n, s_batch, s_row, p_batch, p_row, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write the inverse factor of one matrix of at most 2 HALF rows, by its three lower tiles."""
    S += tl.program_id(0).to(tl.int64) * s_batch
    P += tl.program_id(0).to(tl.int64) * p_batch
    A = _eliminated(_load_tile(S, n, s_row, 0, 0, HALF), tl.minimum(n, HALF), HALF)
    _store_tile(P, A, n, p_row, 0, 0, HALF)
    if n <= HALF:
        return
    L = tl.dot(_load_tile(S, n, s_row, HALF, 0, HALF), tl.trans(A), input_precision="ieee")
    C = _load_tile(S, n, s_row, HALF, HALF, HALF) - tl.dot(L, tl.trans(L), input_precision="ieee")
    C = _eliminated(C, n - HALF, HALF)
    U = tl.dot(C, tl.dot(L, A, input_precision="ieee"), input_precision="ieee")
    _store_tile(P, -U, n, p_row, HALF, 0, HALF)
    _store_tile(P, C, n, p_row, HALF, HALF, HALF)


def factor_tiles(S: Float[Tensor, "batch n n"], M: Float[Tensor, "batch n n"]) -> None:
    """Write the lower triangles of the inverse factors of float32 matrices of at most 64 rows; M is zero elsewhere."""
    strides = (S.stride(0), S.stride(1), M.stride(0), M.stride(1))
    _factor_kernel[(S.shape[0],)](S, M, S.shape[-1], *strides, HALF=_HALF, num_warps=1)
