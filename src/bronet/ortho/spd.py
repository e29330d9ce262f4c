"""Inverses of batches of symmetric positive definite matrices, the ridge that keeps them definite.

The ridge only shrinks: with it a reflector's singular values 1 - 2 s^2 / (s^2 + e) stay in (-1, 1], so no certificate
depends on it being small. Without it a rank-deficient V has no reflector at all.

A GPU inverts by blocks down to tiles: S^-1 = M'M with M the inverse of the Cholesky factor of S. With L the lower left
block of that factor, L = B M11', C = S22 - L L' and M21 = -M22 L M11. No row of L is longer than the root of its
diagonal entry of S, so the Schur complement C is as accurate as S. Formed as S22 - B S11^-1 B' it loses the condition
of S a second time, and more where rounding makes S11^-1 unsymmetric: at a condition of 1000 reflectors built so had
norms of 10 in float32 and hundreds in TF32, and training ended in NaN.
"""

from collections.abc import Callable
from contextlib import nullcontext

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from bronet.errors import BronetError
from bronet.ortho.products import float32_products, is_followed_by_jit, is_traced, memoized

# Relative ridges of the published experiments, each times the mean diagonal of the Gram matrix.
BRO_RIDGE = 1e-7
SEMI_ORTHOGONAL_RIDGE = 1e-5
CHOLESKY_RIDGE = 1e-3

# A relative ridge below a few units in the last place is lost in the Gram matrix's own rounding.
_LEAST_RIDGE_ULPS = 8

# Rounding moves a Gram matrix, its factor and its inverse by a few ulps of its largest eigenvalue. Where the smallest
# is at least this many, a float32 reflector has a norm of at most 1.05 (tests/layers/test_precision.py).
_LEAST_EIGENVALUE_ULPS = 64

TILE = 64
_PROBES = 4

# Rounding in S and in its elimination is a few ulps of its norm; moved by that much, S stays positive definite.
_ROUNDING_ULPS = 4


def ridge_slope(relative: float, n: int, dtype: torch.dtype) -> float:
    """Return the derivative of the ridge with respect to each of the n diagonal entries."""
    return _at_least_ulps(relative, dtype) / n


def _at_least_ulps(relative: float, dtype: torch.dtype) -> float:
    return max(relative, _LEAST_RIDGE_ULPS * torch.finfo(dtype).eps)


def with_ridge(S: Inexact[Tensor, "*batch n n"], relative: float) -> Inexact[Tensor, "*batch n n"]:
    """Return S + e I, S real symmetric or complex Hermitian; see `add_ridge`."""
    return _shifted(S, _ridge(S.diagonal(dim1=-2, dim2=-1), relative))


def add_ridge(S: Inexact[Tensor, "*batch n n"], relative: float) -> None:
    """Add e I to S in place: `relative` times the mean diagonal, at least a few ulps of it, and never zero.

    The absolute floor, eps^2, supposes parameters scaled to a largest entry of one: below it a Gram matrix
    is rounding noise. It is what makes V = 0 the identity instead of a failed factorisation.
    """
    diagonal = S.diagonal(dim1=-2, dim2=-1)
    diagonal += _ridge(diagonal, relative)[..., None]


def _ridge(diagonal: Inexact[Tensor, "*batch n"], relative: float) -> Float[Tensor, "*batch"]:
    dtype = diagonal.real.dtype
    return diagonal.real.mean(-1) * _at_least_ulps(relative, dtype) + torch.finfo(dtype).eps ** 2


def _shifted(S: Inexact[Tensor, "*batch n n"], by: Float[Tensor, "*batch"]) -> Inexact[Tensor, "*batch n n"]:
    """Return S + `by` I; nothing is written in place, so that every tool of torch can follow."""
    eye = torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)
    return torch.addcmul(S, eye, by.to(S.dtype)[..., None, None])


def unit_scaled(V: Tensor) -> Tensor:
    """Return V divided by its largest absolute entry, which no reflector or Cholesky map can see.

    These maps do not change under V -> a V, so the scale is a constant to the gradient as well. It keeps V'V
    away from overflow and underflow for weights of any magnitude.
    """
    return V / scale_of(V)


def scale_of(V: Tensor) -> Tensor:
    """Return the largest absolute entry of V, never zero, as a constant."""
    if V.device.type == "cpu" and not (V.is_complex() or torch.compiler.is_compiling() or is_traced()):
        low, high = V.detach().aminmax()  # which needs no memory
        return torch.maximum(-low, high).clamp_min(torch.finfo(V.dtype).tiny)
    return V.detach().abs().max().clamp_min(torch.finfo(V.real.dtype).tiny)


class _SymmetricInverse(torch.autograd.Function):
    """S^-1 through Cholesky. Derivatives are two products, -P dS P, instead of a differentiated factorisation."""

    @staticmethod
    def forward(S: Tensor) -> Tensor:
        return _inverse(S)

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor], output: Tensor) -> None:  # type: ignore[no-untyped-def, override]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> Tensor:  # type: ignore[no-untyped-def, override]
        (P,) = ctx.saved_tensors
        return -(P @ grads[0] @ P)


class _InverseInFunctions(_SymmetricInverse):
    """The same for torch.func; torch.compile does not take such rules."""

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor], output: Tensor) -> None:  # type: ignore[no-untyped-def, override]
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def jvp(ctx, *tangents: Tensor) -> Tensor:  # type: ignore[no-untyped-def, override]
        (P,) = ctx.saved_tensors
        return -(P @ tangents[0] @ P)

    @staticmethod
    def vmap(_info: object, in_dims: tuple[int], S: Tensor) -> tuple[Tensor, int]:  # type: ignore[override]
        return symmetric_inverse(S.movedim(in_dims[0], 0)), 0


def _inverse(S: Tensor) -> Tensor:
    require_operators()
    if S.is_cuda and S.dtype == torch.float32:
        return inverse_by_blocks(S.reshape(-1, *S.shape[-2:])).view(S.shape)
    return factored(S)[1]


def require_operators() -> None:
    """Raise while a file is made in a format that has no factorisations."""
    if torch.compiler.is_exporting() and torch.onnx.is_in_onnx_export():
        raise BronetError(
            "ONNX has no factorisations, so the weights must be known when a file is written: run the model once "
            "inside bronet.frozen(model, portable=True) and export it there, or use bronet.export"
        )


def symmetric_inverse(S: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """Return the inverse of symmetric positive definite matrices.

    Callers add a ridge. Where rounding outweighs it, the inverse is that of S moved by a few ulps of its norm, a
    constant to the gradient. NaN and infinity give NaN, without a check that waits for a GPU.
    """
    if not is_traced():
        inverse: Tensor = _SymmetricInverse.apply(S)
    else:
        inverse = _inverse(S) if is_followed_by_jit() else _InverseInFunctions.apply(S)
    return inverse


def factored(S: Inexact[Tensor, "*batch n n"]) -> tuple[Inexact[Tensor, "*batch n n"], Inexact[Tensor, "*batch n n"]]:
    """Return L and (L L*)^-1 with L L* = S + d I; d = 0 unless S is so nearly singular that rounding would decide.

    Then d makes up what the smallest eigenvalue lacks of `_LEAST_EIGENVALUE_ULPS`, so it is continuous in S.
    """
    L, P = _factor_and_inverse(S)
    shift = lacking_shift(_norm_estimate(S), _norm_estimate(P))
    may_ask = S.device.type == "cpu" and not (torch.compiler.is_compiling() or is_traced())
    if may_ask and not bool(shift.any()):
        return L, P
    return _factor_and_inverse(_shifted(S, shift))


def factor_for_solving(gram: Callable[[], Inexact[Tensor, "batch n n"]]) -> Inexact[Tensor, "batch n n"]:
    """Return L of `factored` for a fresh S = gram(), which is best contiguous in columns: L takes its memory, on a CPU.

    The norm of the inverse, which is not formed, is estimated from a few solutions: |S^-2 v| / |S^-1 v| for random v is
    no more than it, and near it where it is large.
    """
    S = gram()
    norm, L = _norm_estimate(S.mT), _factored_in_place(S)  # S' has the norm of S, and its rows lie side by side
    v = solved(L, _probes(S.shape[-1], S.dtype).expand(len(S), -1, -1))
    v = v / v.abs().amax((1, 2), keepdim=True)
    shift = lacking_shift(norm, (_lengths(solved(L, v)) / _lengths(v)).amax(1))
    return _factored_in_place(_shifted(gram(), shift)) if bool((shift != 0).any()) else L


def _factored_in_place(S: Inexact[Tensor, "batch n n"]) -> Inexact[Tensor, "batch n n"]:
    S = S if S.mT.is_contiguous() else S.mT.contiguous().mT
    L, info = torch.linalg.cholesky_ex(S, out=(S, torch.empty(len(S), dtype=torch.int32)))
    return torch.where((info > 0)[:, None, None], torch.nan, L) if bool(info.any()) else L


@memoized(64)
def _probes(n: int, dtype: torch.dtype) -> Inexact[Tensor, "probes n"]:
    return torch.randn(_PROBES, n, dtype=dtype, generator=torch.Generator().manual_seed(0))


def solved(L: Inexact[Tensor, "batch n n"], rows: Inexact[Tensor, "batch b n"]) -> Inexact[Tensor, "batch b n"]:
    """Return x' for L L* x = z with vectors z that are rows z', which LAPACK reads as columns, from L as it lies."""
    halfway = torch.linalg.solve_triangular(L, rows.mT, upper=False)
    return torch.linalg.solve_triangular(L.mH, halfway, upper=True).mT


def lacking_shift(norm: Float[Tensor, "*batch"], norm_of_inverse: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Return d for matrices of these norms; an inverse that failed has the norm NaN."""
    lacking = _LEAST_EIGENVALUE_ULPS * torch.finfo(norm.dtype).eps * norm
    return torch.where(norm_of_inverse.isnan(), lacking, lacking - 1 / norm_of_inverse).clamp_min(0)


def _factor_and_inverse(S: Tensor) -> tuple[Tensor, Tensor]:
    """Return L and (L L*)^-1; matrices that are not positive definite have NaN."""
    L, info = torch.linalg.cholesky_ex(S)
    L = torch.where((info > 0)[..., None, None], torch.nan, L)
    return L, torch.cholesky_inverse(L)


def _norm_estimate(S: Inexact[Tensor, "*batch n n"]) -> Float[Tensor, "*batch"]:
    """Return |v S| / |v| for the longest row v of S: no more than its norm, and equal to it where S has rank one."""
    longest = _lengths(S).argmax(-1)
    v = torch.take_along_dim(S, longest[..., None, None], dim=-2)
    size = _lengths(v)[..., 0].clamp_min(torch.finfo(S.real.dtype).tiny)
    return _lengths(v @ S)[..., 0] / size


def _lengths(rows: Inexact[Tensor, "*batch m n"]) -> Float[Tensor, "*batch m"]:
    """Return the length of every row; torch's own norm of complex numbers takes ten times as long."""
    return torch.linalg.vector_norm(torch.view_as_real(rows).flatten(-2) if rows.is_complex() else rows, dim=-1)


def inverse_by_blocks(S: Float[Tensor, "batch n n"]) -> Float[Tensor, "batch n n"]:
    """Return (S + d I)^-1 with d a few ulps of the norm of S, so that S may be indefinite by its own rounding.

    M is computed in float32 proper. Only its product with itself may use TF32, if torch is set so.
    """
    rounding = torch.linalg.matrix_norm(S) * (_ROUNDING_ULPS * torch.finfo(S.dtype).eps)
    M = inverse_factor(_shifted(S, rounding))
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
