"""Proved upper bounds on largest eigenvalues and singular values of batches of real float64 matrices.

A bound t is proved by any matrix L for which t I - M - L L' is small: L L' is positive semidefinite, so lambda_max(M)
is at most t plus the norm of that residual. L comes from a Cholesky factorisation, but nothing is assumed of the
routine that computed it: the residual is measured, and only the rounding of one matrix product enters the proof. An
eigenvalue routine alone would only be an estimate.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from bronet.errors import BronetError
from bronet.proof.proved_map import UNIT_ROUNDOFF, gamma_of_proof, up

# Up to this size all eigenvalues are computed to start from; beyond, Lanczos steps are cheaper. They go on while they
# still find more from one look to the next, for at most this share of n: about as many operations as the
# factorisation that follows.
_DIRECT_SIZE = 64
_LANCZOS_LOOK = 32
_LANCZOS_SHARE = 1 / 4
_LANCZOS_END = 2.0**-36
_KRYLOV_END = 1e-12
_FIRST_SLACK = 2.0**-34
_SLACK_GROWTH = 8.0


def largest_eigenvalue(M: Float[Tensor, "*batch n n"], formation_error: float = 0.0) -> float:
    """Return an upper bound on the largest eigenvalue of all the symmetric matrices M, their lower triangles read.

    `formation_error` bounds the spectral norm of (M as stored) - (M as meant). The estimate that starts the search
    decides only how tight the result is, never whether it holds. A Gram matrix of tiny entries underflows: callers
    bring their factor to scale first (`power_of_two_scale`).
    """
    M = M.reshape(-1, *M.shape[-2:]).double()
    if not bool(torch.isfinite(M).all()):
        raise BronetError(
            "a Gram matrix must be finite to bound its norm; the weights hold NaN, infinity or huge numbers"
        )
    symmetric = M.tril() + M.tril(-1).mT
    # The largest row sum (Gershgorin) is always valid, and tight where M is nearly a multiple of I.
    certain = float(symmetric.abs().sum(-1).max()) * (1 + gamma_of_proof(M.shape[-1] + 1))
    if certain == 0:
        return formation_error
    # A largest row sum is at most sqrt(n) times the norm; the floor also ends the search where M has no positive part.
    estimate = certain * max(_estimate(symmetric / certain), 1 / M.shape[-1])
    if certain <= estimate * (1 + _FIRST_SLACK):
        return up(certain + formation_error)
    slack = _FIRST_SLACK
    while (bound := estimate * (1 + slack)) < certain:
        proved = _cholesky_bound(symmetric, bound)
        if proved is not None:
            return up(min(proved, certain) + formation_error)
        slack *= _SLACK_GROWTH
    return up(certain + formation_error)


def largest_singular_value(A: Float[Tensor, "*batch m n"]) -> float:
    """Return an upper bound on the spectral norm of all the matrices A, through the smaller Gram matrix."""
    A = A.double()
    scale = power_of_two_scale(A)
    A = A / scale
    if A.shape[-2] < A.shape[-1]:
        A = A.mT
    squared = largest_eigenvalue(A.mT @ A, gram_error(A))
    return up(up(math.sqrt(squared)) * scale)


def power_of_two_scale(A: Tensor) -> float:
    """Return the power of two s for which the largest entry of A / s lies in [1, 2), and 1 for A = 0.

    Dividing by it is exact up to underflow, and keeps Gram matrices of any finite A from vanishing or overflowing.
    """
    largest = float(A.detach().abs().max())
    if not math.isfinite(largest):
        raise BronetError("weights must be finite to bound their norm, got NaN or infinity")
    return math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest > 0 else 1.0


def gram_error(A: Float[Tensor, "*batch m n"]) -> float:
    """Return an upper bound on the norm of fl(A'A) - A'A: gamma_m times the largest squared Frobenius norm."""
    squares = A.double().square().sum((-2, -1)).max()
    return up(gamma_of_proof(A.shape[-2]) * float(squares) * (1 + gamma_of_proof(A.shape[-1] * A.shape[-2])))


def absolute_norm(A: Float[Tensor, "*batch m n"]) -> float:
    """Return an upper bound on the spectral norm of |A| (entries made positive), from row and column sums."""
    A = A.double().abs()
    rows, columns = float(A.sum(-1).max()), float(A.sum(-2).max())
    return up(math.sqrt(rows) * math.sqrt(columns) * (1 + gamma_of_proof(A.shape[-1] + A.shape[-2])))


def _estimate(M: Float[Tensor, "batch n n"]) -> float:
    """Return an estimate of the largest eigenvalue over a batch of norm at most one.

    Training lowers the largest singular values only, until many are nearly equal; Lanczos then takes many steps.
    """
    batch, n, _ = M.shape
    if n <= _DIRECT_SIZE:
        return float(torch.linalg.eigvalsh(M).max())
    limit = max(2 * _LANCZOS_LOOK, round(_LANCZOS_SHARE * n))
    v = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(M.device)
    v = (v / v.norm()).expand(batch, n)
    basis = torch.zeros(batch, limit, n, dtype=torch.float64, device=M.device)
    projected = torch.zeros(batch, limit + 1, limit + 1, dtype=torch.float64, device=M.device)
    found = -math.inf
    for step in range(limit):
        basis[:, step] = v
        known = basis[:, : step + 1]
        w = (M @ v[:, :, None])[:, :, 0]
        projected[:, step, step] = (v * w).sum(dim=-1)
        for _ in range(2):  # twice is enough
            w = w - (known.mT @ (known @ w[:, :, None]))[:, :, 0]
        size = w.norm(dim=-1, keepdim=True)
        size = torch.where(size > _KRYLOV_END, size, 0.0)  # zero once the Krylov space is exhausted
        projected[:, step + 1, step] = size[:, 0]  # eigvalsh reads the lower triangle
        v = torch.where(size > 0, w / size, 0.0)
        if (step + 1) % _LANCZOS_LOOK == 0 or step + 1 == limit:
            before, found = found, float(torch.linalg.eigvalsh(projected[:, : step + 1, : step + 1]).max())
            if found - before <= _LANCZOS_END * abs(found):
                break
    return found


def _cholesky_bound(M: Float[Tensor, "batch n n"], bound: float) -> float | None:
    """Return an upper bound on lambda_max near `bound` if the factorisation of bound I - M succeeds, else None."""
    n = M.shape[-1]
    shifted = -M
    shifted.diagonal(dim1=-2, dim2=-1).add_(bound)
    L, info = torch.linalg.cholesky_ex(shifted)
    if bool(info.any()) or not bool(torch.isfinite(L).all()):
        return None
    residual = float(torch.linalg.matrix_norm(shifted - L @ L.mT).max())  # Frobenius
    product = gamma_of_proof(n + 1) * float(L.square().sum((-2, -1)).max())  # what the rounding of L L' can hide
    subtraction = UNIT_ROUNDOFF * (bound + float(M.diagonal(dim1=-2, dim2=-1).abs().max()))
    return up(bound + (residual + product) * (1 + gamma_of_proof(n * n + 4)) + subtraction)
