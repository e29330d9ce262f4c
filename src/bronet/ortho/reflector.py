"""The block reflector W = I - 2 V (V*V)^-1 V* (Proposition 1), and the convolution as the paper has it (Algorithm 1).

W materialised, and one such W per frequency between two FFTs, are the definitions that everything else is tested
against; no layer forms W. What dense layers run is `reflect`, what convolutions run is in `ortho.bro_convolution`. A
relative ridge is added to V*V, so that W exists for every V; with it W is a contraction instead of exactly orthogonal.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Inexact
from torch import Tensor, fft
from torch.autograd.function import once_differentiable

from bronet.ortho.products import is_traced, product
from bronet.ortho.spd import (
    BRO_RIDGE,
    TILE,
    add_ridge,
    factor_for_solving,
    ridge_slope,
    solved,
    symmetric_inverse,
    unit_scaled,
    with_ridge,
)


def block_reflector(V: Inexact[Tensor, "*batch m n"], *, ridge: float = BRO_RIDGE) -> Inexact[Tensor, "*batch m m"]:
    """Return W = I - 2 V (V*V + e I)^-1 V* of real or complex V.

    With e = 0 and V of full column rank W is unitary and Hermitian with n eigenvalues -1 and m - n eigenvalues 1;
    `ridge` scales e, relative to the mean diagonal of V*V.
    """
    V = unit_scaled(V)
    eye = torch.eye(V.shape[-2], dtype=V.dtype, device=V.device)
    return eye - 2 * V @ torch.linalg.solve(with_ridge(V.mH @ V, ridge), V.mH)


def textbook_bro_convolution(
    x: Float[Tensor, "b c_in h w"],
    V: Float[Tensor, "c n k k"],
    *,
    c_out: int,
    padding: int | None = None,
    keep_padding: bool = False,
    ridge: float = BRO_RIDGE,
) -> Float[Tensor, "b c_out h_out w_out"]:
    """Return the BRO convolution of x (Proposition 2): orthogonal on the padded grid, a contraction once cropped.

    `padding` is k' on each side (default k // 2; zero makes the convolution circular); c = max(c_in, c_out). Algorithm
    1 crops k:-k in its last line; the stated shapes need k':-k', which is what is done here.
    """
    c_in, k = x.shape[1], V.shape[-1]
    pad = k // 2 if padding is None else padding
    x = F.pad(x, (pad, pad, pad, pad))
    size = (x.shape[-2], x.shape[-1])
    X = fft.rfft2(x)  # b c_in H W/2+1
    V_f = fft.rfft2(V, s=size).permute(2, 3, 0, 1)  # H W/2+1 c n
    W = block_reflector(V_f, ridge=ridge)[..., :c_out, :c_in]
    Y = (W @ X.permute(2, 3, 1, 0)).permute(3, 2, 0, 1)
    y = fft.irfft2(Y, s=size)
    return y if keep_padding or pad == 0 else y[..., pad:-pad, pad:-pad]


def dense_inverse(V: Float[Tensor, "*batch c n"], *, ridge: float) -> Float[Tensor, "*batch n n"]:
    """Return (V'V + e I)^-1."""
    return symmetric_inverse(with_ridge(product(V.mT, V), ridge))


def evaluation_factors(V: Float[Tensor, "c n"], c_in: int, c_out: int, *, ridge: float) -> tuple[Tensor, ...]:
    """Return what a CPU evaluates the reflector with: W = E - 2 QQ', or the rows of Q where these are fewer numbers.

    They are transposed, for activations as rows: (W',) or (Q_in, Q_out').
    """
    V = unit_scaled(V)
    Q = torch.linalg.solve_triangular(torch.linalg.cholesky_ex(with_ridge(V.mT @ V, ridge)).L, V.mT, upper=False).mT
    if c_in * c_out > (c_in + c_out) * V.shape[1]:
        return Q[:c_in].contiguous(), Q[:c_out].mT.contiguous()
    W = -2 * Q[:c_in] @ Q[:c_out].mT
    W.diagonal().add_(1)
    return (W,)


def evaluate(rows: Float[Tensor, "*batch c_in"], factors: tuple[Tensor, ...]) -> Float[Tensor, "*batch c_out"]:
    """Return the reflection of rows for factors of `evaluation_factors`."""
    if len(factors) == 1:
        return product(rows, factors[0])
    Q_in, Q_out = factors
    return embed_channels(rows, Q_out.shape[1], dim=-1) - 2 * product(product(rows, Q_in), Q_out)


class _DenseReflection(torch.autograd.Function):
    """x, V -> E x - 2 V[:c_out] S^-1 V[:c_in]' x: the backward pass is that of `ortho.bro_convolution` with D = I."""

    @staticmethod
    def forward(  # type: ignore[no-untyped-def, override]  # noqa: PLR0917
        ctx, x: Tensor, V: Tensor, inverse: Tensor | None, c_out: int, ridge: float
    ) -> Tensor:
        W, x = V.to(x.dtype), _in_order(x)
        ctx.solve = _by_factor(V, ridge) if inverse is None else partial(product, inverse.to(x.dtype))
        p = ctx.solve(product(W[: x.shape[-2]].mT, x))
        ctx.save_for_backward(x, V, p)
        ctx.c_out, ctx.ridge = c_out, ridge
        return embed_channels(x, c_out, dim=-2) - 2 * product(W[:c_out], p)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:  # type: ignore[no-untyped-def, override]
        x, V, p = ctx.saved_tensors
        g, W, c, c_in = _in_order(grads[0]), V.to(x.dtype), V.shape[-2], x.shape[-2]
        q = ctx.solve(product(W[: ctx.c_out].mT, g))
        w = product(W, q)
        gx = embed_channels(g, c_in, dim=-2) - 2 * w.narrow(-2, 0, c_in)
        left, right = embed_channels(g, c, dim=-2) - w, embed_channels(x, c, dim=-2) - product(W, p)
        gV = product(left, p.mT) + product(right, q.mT)
        slope = ridge_slope(ctx.ridge, V.shape[-1], V.dtype)
        if slope > torch.finfo(x.dtype).eps:  # below that the ridge's own gradient is lost in rounding
            gV = gV - 2 * slope * (p * q).sum((-2, -1), keepdim=True) * W
        return gx, -2 * gV.sum_to_size(V.shape).to(V.dtype), None, None, None


def _by_factor(V: Float[Tensor, "c n"], ridge: float) -> Callable[[Tensor], Tensor]:
    """Return z -> (V'V + e I)^-1 z."""

    def gram() -> Tensor:
        S = product(V.mT, V)
        add_ridge(S, ridge)
        return S.mT[None]

    L = factor_for_solving(gram)
    return lambda z: solved(L, z.mT.reshape(1, -1, z.shape[-2])).view(z.mT.shape).mT


def _in_order(x: Tensor) -> Tensor:
    """Return x of pixels in its own memory order, copied once instead of in each product and sum."""
    return x.contiguous() if x.ndim > 2 else x


def reflect(
    x: Float[Tensor, "*batch c_in b"],
    V: Float[Tensor, "c n"],
    inverse: Float[Tensor, "n n"] | None,
    *,
    c_out: int,
    ridge: float,
) -> Float[Tensor, "*batch c_out b"]:
    """Return the semi-orthogonal reflector times x, never formed: E x - 2 V[:c_out] S^-1 V[:c_in]' x (App. A.3).

    `inverse`, if given, is `dense_inverse(V)` with this ridge; the gradient takes its dependence on V into account.
    """
    eager = not (torch.compiler.is_compiling() or is_traced())
    solves = x.device.type == "cpu" and eager and x.dtype == V.dtype and V.requires_grad and V.shape[-1] > TILE
    if inverse is None and not solves:
        with nullcontext() if is_traced() else torch.no_grad():
            inverse = dense_inverse(V, ridge=ridge)
    if inverse is not None and (is_traced() or not V.requires_grad):  # torch's own gradient costs no more then
        W = V.to(x.dtype)
        return embed_channels(x, c_out, dim=-2) - 2 * (W[:c_out] @ (inverse.to(x.dtype) @ (W[: x.shape[-2]].mT @ x)))
    y: Tensor = _DenseReflection.apply(x, V, inverse, c_out, ridge)
    return y


def embed_channels(x: Tensor, c_out: int, *, dim: int) -> Tensor:
    """Return E x: the first c_out channels of x, or x with zero channels appended."""
    c_in = x.shape[dim]
    if c_out <= c_in:
        return x.narrow(dim, 0, c_out)
    zeros = x.new_zeros([c_out - c_in if d == dim % x.ndim else size for d, size in enumerate(x.shape)])
    return torch.cat((x, zeros), dim=dim)
