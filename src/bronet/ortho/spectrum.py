"""The parameters of a BRO convolution in the Fourier basis: A_f for every frequency, and its Gram matrix S_f.

A_f = [[Re V_f, -Im V_f], [Im V_f, Re V_f]] is the real form of the complex c x n matrix V_f. S_f needs no
frequency-domain product of that size: it is the Fourier transform of the kernel's autocorrelation, whose k^2 x k^2
taps of n x n are one product. On grids that are small against k^2 the direct product A_f'A_f costs less.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from bronet.ortho.real_dft import frequencies, kernel_basis
from bronet.ortho.spd import ridge_of


def spectrum_blocks(
    V: Float[Tensor, "c n kh kw"],
    grid: tuple[int, int],
    *,
    dense: bool,
    dtype: torch.dtype | None = None,
    scale: Float[Tensor, ""] | None = None,
) -> Float[Tensor, "f two_c two_n"]:
    """Return A_f of V / scale for every frequency of the grid, in V's precision and rounded once to `dtype`."""
    c, n, kh, kw = V.shape
    basis = kernel_basis(grid, (kh, kw), dense=dense, dtype=V.dtype, device=V.device)
    scale = torch.ones((), dtype=V.dtype, device=V.device) if scale is None else scale
    if V.is_cuda and V.dtype == torch.float32:
        from bronet.kernels import spectrum as kernel

        return kernel.blocks(V, scale, basis, dtype or V.dtype)
    taps = (V / scale).permute(2, 3, 0, 1).reshape(kh * kw, c * n)
    re, im = (basis @ taps).view(2, -1, c, n).unbind(0)
    A = V.new_empty(re.shape[0], 2, c, 2, n, dtype=dtype or V.dtype)
    A[:, 0, :, 0], A[:, 1, :, 1] = re, re
    A[:, 1, :, 0], A[:, 0, :, 1] = im, im.neg()
    return A.view(-1, 2 * c, 2 * n)


def spectrum_gradient(
    gA: Float[Tensor, "f two_c two_n"], taps: tuple[int, int], grid: tuple[int, int], *, dense: bool, dtype: torch.dtype
) -> Float[Tensor, "c n kh kw"]:
    """Return the gradient with respect to V for a gradient with respect to A: the adjoint of `spectrum_blocks`."""
    f, two_c, two_n = gA.shape
    c, n = two_c // 2, two_n // 2
    basis = kernel_basis(grid, taps, dense=dense, dtype=dtype, device=gA.device)
    if gA.is_cuda and dtype == torch.float32:
        from bronet.kernels import spectrum as kernel

        return kernel.gradient(gA, basis, taps)
    blocks = gA.view(f, 2, c, 2, n)
    parts = gA.new_empty(2, f, c, n, dtype=dtype)
    parts[0].copy_(blocks[:, 0, :, 0]).add_(blocks[:, 1, :, 1])
    parts[1].copy_(blocks[:, 1, :, 0]).sub_(blocks[:, 0, :, 1])
    gradient = basis.mT @ parts.view(2 * f, c * n)
    return gradient.view(*taps, c, n).permute(2, 3, 0, 1)


def spectrum_gram(
    V: Float[Tensor, "c n kh kw"], A: Float[Tensor, "f two_c two_n"], grid: tuple[int, int], *, dense: bool
) -> Float[Tensor, "f two_n two_n"]:
    """Return S_f = A_f'A_f in V's precision, by whichever of the two ways takes fewer operations."""
    c, n, kh, kw = V.shape
    k2, f = kh * kw, A.shape[0]
    direct = f * (2 * n) * (2 * c) * n
    through_autocorrelation = (k2 * n) ** 2 * c + 2 * f * k2**2 * n**2
    if A.dtype == V.dtype and direct <= through_autocorrelation:
        re, im = (A.mT @ A[..., :n]).split(n, dim=-2)
    else:
        re, im = _autocorrelation_spectrum(V, grid, dense=dense)
    S = V.new_empty(f, 2, n, 2, n)
    S[:, 0, :, 0], S[:, 1, :, 1] = re, re
    S[:, 1, :, 0], S[:, 0, :, 1] = im, im.mT
    return S.view(f, 2 * n, 2 * n)


def _autocorrelation_spectrum(
    V: Float[Tensor, "c n kh kw"], grid: tuple[int, int], *, dense: bool
) -> tuple[Float[Tensor, "f n n"], Float[Tensor, "f n n"]]:
    """Return the real and imaginary part of V_f* V_f from the kernel's autocorrelation."""
    c, n, kh, kw = V.shape
    k2, f = kh * kw, len(frequencies(grid, dense=dense))
    flat = V.permute(0, 2, 3, 1).reshape(c, k2 * n)
    taps = (flat.mT @ flat).view(k2, n, k2, n).permute(0, 2, 1, 3).reshape(k2 * k2, n * n)
    # conj(e^{-i a}) e^{-i b} for each pair of taps: cosine and sine of the difference of their angles.
    cos, minus_sin = kernel_basis(grid, (kh, kw), dense=dense, dtype=V.dtype, device=V.device).view(2, f, k2).unbind(0)
    re = cos[:, :, None] * cos[:, None] + minus_sin[:, :, None] * minus_sin[:, None]
    im = cos[:, :, None] * minus_sin[:, None] - minus_sin[:, :, None] * cos[:, None]
    pairs = torch.cat((re, im)).view(2 * f, k2 * k2)
    S = (pairs @ taps).view(2, f, n, n)
    return S[0], S[1]


def with_ridge(S: Float[Tensor, "*batch n n"], relative: float) -> Float[Tensor, "*batch n n"]:
    """Return S + e I."""
    e = ridge_of(S.diagonal(dim1=-2, dim2=-1), relative, S.dtype)
    return S + e[..., None, None] * torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)


def rows_of_channels(A: Float[Tensor, "f two_c two_n"], channels: int) -> Float[Tensor, "f two_channels two_n"]:
    """Return A built from the first `channels` rows of V only."""
    c = A.shape[-2] // 2
    if channels == c:
        return A
    return A.unflatten(-2, (2, c))[:, :, :channels].flatten(1, 2)


def fill_channels(u: Float[Tensor, "f two_channels b"], c: int) -> Float[Tensor, "f two_c b"]:
    """Return u with zeros for the channels it lacks: the adjoint of `rows_of_channels` on activations."""
    channels = u.shape[-2] // 2
    if channels == c:
        return u
    filled = u.new_zeros(u.shape[0], 2, c, u.shape[-1])
    filled[:, :, :channels] = u.unflatten(-2, (2, channels))
    return filled.flatten(1, 2)
