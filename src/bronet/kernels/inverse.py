"""Inverses of many small symmetric positive definite matrices, by Schur complements down to tiles in registers.

Library factorisations of a few hundred matrices of a few hundred rows are bound by latency. Here matrices of up to 64
rows are inverted in registers, each by two Gauss-Jordan sweeps (no pivoting, which positive definite matrices do not
need), and larger ones by 2 x 2 blocks, which are matrix products. Precision is that of float32 products as torch is
set: with TF32 allowed the error is a few 1e-4 times the condition, good enough for training and for nothing else.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

_HALF = 32
_TILE = 2 * _HALF


@triton.jit
def _gauss_jordan(M, count, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the inverse of a tile; rows and columns from `count` on are those of the identity already."""
    rows = tl.arange(0, HALF)
    i, j = rows[:, None], rows[None, :]
    for k in range(count):
        row = tl.sum(tl.where(i == k, M, 0.0), axis=0)
        column = tl.sum(tl.where(j == k, M, 0.0), axis=1)
        pivot = 1.0 / tl.sum(tl.where(rows == k, row, 0.0), axis=0)
        scaled = tl.where(rows == k, pivot, row * pivot)
        column = tl.where(rows == k, -1.0, column)
        M = tl.where((i == k) | (j == k), 0.0, M) - column[:, None] * scaled[None, :]
    return M


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
def _inverse_kernel(S, P, n, s_batch, s_row, p_batch, p_row, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """Invert one matrix of at most 2 HALF rows by its four tiles."""
    S += tl.program_id(0).to(tl.int64) * s_batch
    P += tl.program_id(0).to(tl.int64) * p_batch
    A = _gauss_jordan(_load_tile(S, n, s_row, 0, 0, HALF), tl.minimum(n, HALF), HALF)
    if n <= HALF:
        _store_tile(P, A, n, p_row, 0, 0, HALF)
        return
    B = _load_tile(S, n, s_row, HALF, 0, HALF)
    T = tl.dot(B, A, input_precision="ieee")
    C = _load_tile(S, n, s_row, HALF, HALF, HALF) - tl.dot(T, tl.trans(B), input_precision="ieee")
    C = _gauss_jordan(C, n - HALF, HALF)
    U = tl.dot(C, T, input_precision="ieee")
    _store_tile(P, A + tl.dot(tl.trans(T), U, input_precision="ieee"), n, p_row, 0, 0, HALF)
    _store_tile(P, -U, n, p_row, HALF, 0, HALF)
    _store_tile(P, -tl.trans(U), n, p_row, 0, HALF, HALF)
    _store_tile(P, C, n, p_row, HALF, HALF, HALF)


def spd_inverse(S: Float[Tensor, "batch n n"]) -> Float[Tensor, "batch n n"]:
    """Return the inverse of every float32 matrix."""
    P = torch.empty_like(S)
    _invert_into(S, P)
    return P


def _invert_into(S: Tensor, P: Tensor) -> None:
    n = S.shape[-1]
    if n <= _TILE:
        strides = (S.stride(0), S.stride(1), P.stride(0), P.stride(1))
        _inverse_kernel[(S.shape[0],)](S, P, n, *strides, HALF=_HALF, num_warps=1)
        return
    m = _TILE * triton.cdiv(n, 2 * _TILE)  # whole tiles first; the rest is the smaller part
    B, P11, P21, P22 = S[:, m:, :m], P[:, :m, :m], P[:, m:, :m], P[:, m:, m:]
    _invert_into(S[:, :m, :m], P11)
    T = B @ P11
    _invert_into(torch.baddbmm(S[:, m:, m:], T, B.mT, alpha=-1), P22)
    torch.baddbmm(P21, P22, T, beta=0, alpha=-1, out=P21)
    P[:, :m, m:] = P21.mT
    P11.baddbmm_(T.mT, P21, alpha=-1)
