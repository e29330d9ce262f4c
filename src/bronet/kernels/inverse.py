"""Inverses of many small symmetric positive definite matrices, by Schur complements down to tiles in registers.

Library factorisations of a few hundred matrices of a few hundred rows are bound by latency. Here matrices of up to 32
rows are inverted by one Gauss-Jordan sweep each, held in registers (no pivoting, which positive definite matrices do
not need), and larger ones by 2 x 2 blocks, which are matrix products. Precision is that of float32 products as torch is
set: with TF32 allowed the error is a few 1e-4 times the condition, good enough for training and for nothing else.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

_TILE = 32


@triton.jit
def _gauss_jordan_kernel(S, P, n, s_batch, s_row, p_batch, p_row, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    rows = tl.arange(0, TILE)
    i, j = rows[:, None], rows[None, :]
    inside = (i < n) & (j < n)
    batch = tl.program_id(0).to(tl.int64)
    eye = tl.where(i == j, 1.0, 0.0)
    M = tl.where(inside, tl.load(S + batch * s_batch + i * s_row + j, mask=inside, other=0.0), eye)
    for k in range(n):
        row = tl.sum(tl.where(i == k, M, 0.0), axis=0)
        column = tl.sum(tl.where(j == k, M, 0.0), axis=1)
        pivot = 1.0 / tl.sum(tl.where(rows == k, row, 0.0), axis=0)
        scaled = tl.where(rows == k, pivot, row * pivot)
        column = tl.where(rows == k, 0.0, column)
        M = tl.where(j == k, 0.0, M)
        M = tl.where(i == k, 0.0, M) - column[:, None] * scaled[None, :]
        M += tl.where(i == k, scaled[None, :], 0.0)
    tl.store(P + batch * p_batch + i * p_row + j, M, mask=inside)


def spd_inverse(S: Float[Tensor, "batch n n"]) -> Float[Tensor, "batch n n"]:
    """Return the inverse of every float32 matrix."""
    P = torch.empty_like(S)
    _invert_into(S, P)
    return P


def _invert_into(S: Tensor, P: Tensor) -> None:
    n = S.shape[-1]
    if n <= _TILE:
        grid = (S.shape[0],)
        _gauss_jordan_kernel[grid](S, P, n, S.stride(0), S.stride(1), P.stride(0), P.stride(1), TILE=_TILE, num_warps=1)
        return
    m = _TILE * max(1, triton.cdiv(n, 2 * _TILE))  # whole tiles first; the rest is the smaller part
    B = S[:, m:, :m]
    _invert_into(S[:, :m, :m], P[:, :m, :m])
    T = B @ P[:, :m, :m]
    _invert_into(torch.baddbmm(S[:, m:, m:], T, B.mT, alpha=-1), P[:, m:, m:])
    U = P[:, m:, m:] @ T
    P[:, m:, :m] = -U
    P[:, :m, m:] = -U.mT
    P[:, :m, :m].baddbmm_(T.mT, U)
