"""The Cholesky map W = L^-1 V with L L* = V V* + e I: a Gram-Schmidt of V's rows, real or complex.

W W* = I up to the ridge, which only shrinks: the singular values s / sqrt(s^2 + e) stay below one. A matrix with more
rows than columns is mapped through its transpose.

Triangular solves with many right-hand sides are slow on GPUs, so the small factor is inverted and multiplied. With
B = sym(tril(G W*)), the lower triangle of G W* mirrored (its diagonal real), the gradient of V for a gradient G of W is
L^-* (G - B W), up to the ridge's own small share.
"""

import torch
from jaxtyping import Inexact
from torch import Tensor

from bronet.ortho.spd import CHOLESKY_RIDGE, ridge_slope, scale_of, with_ridge


class _CholeskyMap(torch.autograd.Function):
    """V (m <= n) -> L^-1 V with the backward pass of the module's docstring."""

    @staticmethod
    def forward(ctx, V: Tensor, ridge: float) -> Tensor:  # type: ignore[no-untyped-def, override]
        scale = scale_of(V)
        V = V / scale
        L = torch.linalg.cholesky_ex(with_ridge(V @ V.mH, ridge)).L
        eye = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device).expand(L.shape)
        inverse = torch.linalg.solve_triangular(L, eye, upper=False)
        W = inverse @ V
        ctx.save_for_backward(V, W, inverse, scale)
        ctx.ridge = ridge
        return W

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def, override]
        V, W, inverse, scale = ctx.saved_tensors
        G = grads[0]
        K = G @ W.mH
        below = K.tril(-1)
        B = below + below.mH + torch.diag_embed(K.diagonal(dim1=-2, dim2=-1).real)
        gV = inverse.mH @ (G - B @ W)
        # The ridge follows the mean diagonal of V V*; its gradient is -tr(L^-* B L^-1) / 2 times twice V's share.
        slope = ridge_slope(ctx.ridge, W.shape[-2], W.real.dtype)
        if slope > torch.finfo(W.dtype).eps:  # below that it is lost in rounding
            gV = gV - slope * (inverse.conj() * (B @ inverse)).real.sum((-2, -1), keepdim=True) * V
        return gV / scale, None


def cholesky_orthogonal(
    V: Inexact[Tensor, "*batch m n"], *, ridge: float = CHOLESKY_RIDGE
) -> Inexact[Tensor, "*batch m n"]:
    """Return the (semi-)orthogonal L^-1 V; norm at most one up to rounding. Differentiable once."""
    if V.shape[-2] > V.shape[-1]:
        return cholesky_orthogonal(V.mH, ridge=ridge).mH
    W: Tensor = _CholeskyMap.apply(V, ridge)
    return W
