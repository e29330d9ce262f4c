"""The spectrum of kernels in the basis of `real_dft`: V_f of a BRO convolution, and its Gram matrix.

A_f = [[Re V_f, -Im V_f], [Im V_f, Re V_f]] is the real form of the complex c x n matrix V_f. Its Gram matrix S_f needs
no frequency-domain product of that size: it is the Fourier transform of the kernel's autocorrelation, whose k^2 x k^2
taps of n x n are one product. On grids that are small against k^2 the direct product A_f'A_f costs less.

Cayley, LOT, Cholesky and ECO map complex matrices, one for each frequency up to conjugation, which halves their
arithmetic against real blocks; what is applied to images is real again. They see the phase of a kernel, so its middle
tap lies at the origin there, which the block reflector need not care about.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Complex, Float, Int
from torch import Tensor

from bronet.ortho.products import is_traced, memoized
from bronet.ortho.real_dft import frequencies, kernel_basis


def spectrum_blocks(
    V: Float[Tensor, "c n kh kw"],
    grid: tuple[int, int],
    *,
    dense: bool,
    scale: Float[Tensor, ""] | None = None,
    dtype: torch.dtype | None = None,
    out: Float[Tensor, "f two_c two_n"] | None = None,
    corner: tuple[int, int] = (0, 0),
) -> Float[Tensor, "f two_c two_n"]:
    """Return A_f of V / scale for every frequency of the grid, in V's precision and rounded once to `dtype`.

    The first tap of V lies at `corner`. With `out` the blocks are written there.
    """
    c, n, kh, kw = V.shape
    basis = kernel_basis(grid, (kh, kw), dense=dense, dtype=V.dtype, device=V.device, corner=corner)
    taps = V.permute(2, 3, 0, 1).reshape(kh * kw, c, n)
    if out is None:
        out = V.new_empty(basis.shape[0] // 2, 2 * c, 2 * n, dtype=dtype or V.dtype)
    if V.is_cuda and V.dtype == torch.float32 and not is_traced():
        from bronet.kernels import spectrum as kernel

        kernel.blocks(taps, V.new_ones(()) if scale is None else scale, basis, out)
        return out
    taps = taps if scale is None else taps / scale
    re, im = (basis @ taps.reshape(kh * kw, c * n)).view(2, -1, c, n).unbind(0)
    A = out.view(-1, 2, c, 2, n)
    A[:, 0, :, 0], A[:, 1, :, 1] = re, re
    A[:, 1, :, 0], A[:, 0, :, 1] = im, im.neg()
    return out


def spectrum_gradient(
    gA: Float[Tensor, "f two_c two_n"], taps: tuple[int, int], grid: tuple[int, int], *, dense: bool, dtype: torch.dtype
) -> Float[Tensor, "c n kh kw"]:
    """Return the gradient with respect to V for a gradient with respect to A: the adjoint of `spectrum_blocks`."""
    f, two_c, two_n = gA.shape
    c, n = two_c // 2, two_n // 2
    basis = kernel_basis(grid, taps, dense=dense, dtype=dtype, device=gA.device)
    if gA.is_cuda and dtype == torch.float32:
        from bronet.kernels import spectrum as kernel

        return kernel.gradient(gA, basis).view(*taps, c, n).permute(2, 3, 0, 1)
    blocks = gA.view(f, 2, c, 2, n)
    parts = gA.new_empty(2, f, c, n, dtype=dtype)
    parts[0].copy_(blocks[:, 0, :, 0]).add_(blocks[:, 1, :, 1])
    parts[1].copy_(blocks[:, 1, :, 0]).sub_(blocks[:, 0, :, 1])
    gradient = basis.mT @ parts.view(2 * f, c * n)
    return gradient.view(*taps, c, n).permute(2, 3, 0, 1)


def spectrum_gram(
    V: Float[Tensor, "c n kh kw"],
    grid: tuple[int, int],
    *,
    dense: bool,
    out: Float[Tensor, "f two_n two_n"] | None = None,
) -> Float[Tensor, "f two_n two_n"]:
    """Return S_f = A_f'A_f in V's precision, by whichever of the two ways takes fewer operations."""
    c, n, kh, kw = V.shape
    f = len(frequencies(grid, dense=dense))
    directly = f * (2 * n) * (2 * c) * n
    by_autocorrelation = (kh * kw * n) ** 2 * c + 2 * f * (2 * kh - 1) * (2 * kw - 1) * n**2
    if by_autocorrelation < directly:
        return spectrum_blocks(autocorrelation(V), grid, dense=dense, out=out, corner=(1 - kh, 1 - kw))
    A = spectrum_blocks(V, grid, dense=dense)
    re, im = (A.mT @ A[..., :n]).split(n, dim=-2)
    out = V.new_empty(f, 2 * n, 2 * n) if out is None else out
    S = out.view(f, 2, n, 2, n)
    S[:, 0, :, 0], S[:, 1, :, 1] = re, re
    S[:, 1, :, 0], S[:, 0, :, 1] = im, im.mT
    return out


def autocorrelation(V: Float[Tensor, "c n kh kw"]) -> Float[Tensor, "n n th tw"]:
    """Return the kernel of V*V: entry d is the sum over taps t of V_t' V_{t+d}, for d from -(k - 1) to k - 1."""
    c, n, kh, kw = V.shape
    flat = V.permute(0, 2, 3, 1).reshape(c, kh * kw * n)
    pairs = (flat.mT @ flat).view(kh * kw, n, kh * kw, n).permute(0, 2, 1, 3).reshape(-1, n * n)
    shifts = tap_shifts((kh, kw), V.device)
    summed = V.new_zeros((2 * kh - 1) * (2 * kw - 1), n * n).index_add_(0, shifts, pairs)
    return summed.view(2 * kh - 1, 2 * kw - 1, n, n).permute(2, 3, 0, 1)


@memoized(16)
def tap_shifts(taps: tuple[int, int], device: torch.device) -> Int[Tensor, " pairs"]:
    """Return, for each pair (first, second) of taps, the index of second - first among all shifts."""
    kh, kw = taps
    row, column = torch.arange(kh), torch.arange(kw)
    vertical = (row[None, :] - row[:, None] + kh - 1).view(kh, 1, kh, 1)
    horizontal = (column[None, :] - column[:, None] + kw - 1).view(1, kw, 1, kw)
    return (vertical * (2 * kw - 1) + horizontal).expand(kh, kw, kh, kw).reshape(-1).to(device)


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
    return F.pad(u.unflatten(-2, (2, channels)), (0, 0, 0, c - channels)).flatten(1, 2)


def centred_spectrum(
    kernel: Float[Tensor, "m n kh kw"], grid: tuple[int, int], *, dense: bool
) -> Complex[Tensor, "f m n"]:
    """Return the kernel's matrix at every frequency of the grid, the middle tap at the origin."""
    m, n, kh, kw = kernel.shape
    middle = (-(kh // 2), -(kw // 2))
    basis = kernel_basis(grid, (kh, kw), dense=dense, dtype=kernel.dtype, device=kernel.device, corner=middle)
    taps = kernel.permute(2, 3, 0, 1).reshape(kh * kw, m * n)
    re, im = (basis @ taps).view(2, -1, m, n).unbind(0)
    return torch.complex(re, im)


def real_blocks(W: Complex[Tensor, "f m n"]) -> Float[Tensor, "f two_m two_n"]:
    """Return [[Re W, -Im W], [Im W, Re W]]: the same map on (re, im) pairs, with the same singular values, twice."""
    re, im = W.real, W.imag
    return torch.cat((torch.cat((re, -im), dim=-1), torch.cat((im, re), dim=-1)), dim=-2)
