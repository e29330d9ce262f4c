"""The orthonormal real Fourier basis of a padded grid, as real matrices: no FFT, no complex numbers.

`D` maps the pixels of an h x w window of an H x W grid to (frequency, re/im) rows, one frequency of each conjugate
pair, scaled so that D'D = I; padding before and cropping after a circular operation are therefore inside D.
Two forms of the same map: dense, one matrix, for small grids; separable, a real DFT along the height and a
complex one (written as real) along the width, for large ones. The separable form keeps both members
of a conjugate pair on its self-conjugate lines, each with half the weight, so D'D = I holds for it as well.

Kernels in this basis: A_f = [[Re V_f, -Im V_f], [Im V_f, Re V_f]] is the real form of the complex c x n matrix V_f of a
BRO convolution. Its Gram matrix S_f needs no frequency-domain product of that size: it is the Fourier transform of the
kernel's autocorrelation, whose k^2 x k^2 taps of n x n are one product. On grids that are small against k^2 the direct
product A_f'A_f costs less. Cayley, LOT, Cholesky and ECO map complex matrices, one for each frequency up to
conjugation, which halves their arithmetic against real blocks; what is applied to images is real again. They see the
phase of a kernel, so its middle tap lies at the origin there, which the block reflector need not care about.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Complex, Float, Int
from torch import Tensor

from bronet.ortho.products import is_traced, memoized, product

# Pixels of the grid up to which the dense form is used, by device type (docs/speed.md has the measurement): a matrix
# unit makes the dense form's extra arithmetic free for longer.
DENSE_GRID_PIXELS = {"cpu": 64, "cuda": 400}


@dataclass(frozen=True)
class Window:
    """An h x w window whose corner lies at (top, left) of an H x W circular grid."""

    grid: tuple[int, int]
    size: tuple[int, int]
    corner: tuple[int, int] = (0, 0)


class _Products:
    def factors(self) -> tuple[Float[Tensor, "..."], ...]:
        """Return the real matrices whose composition D is."""
        return tuple(vars(self).values())

    def synthesis(self, u: Float[Tensor, "f two_c b"]) -> Float[Tensor, "pixels c b"]:
        """Return D'u."""
        matrix, columns = self._last_product(u)
        return product(matrix, columns).view(-1, u.shape[1] // 2, u.shape[2])

    def reflected(
        self, residual: Float[Tensor, "pixels c b"], u: Float[Tensor, "f two_c b"], sign: int
    ) -> Float[Tensor, "pixels c b"]:
        """Return sign (residual - 2 D'u), the last product and the sum in one."""
        matrix, columns = self._last_product(u)
        flat = residual.reshape(len(matrix), -1)
        return torch.addmm(flat, matrix, columns, beta=sign, alpha=-2 * sign).view(residual.shape)

    @abstractmethod
    def _last_product(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return the two factors of the last product of D'u."""


@dataclass(frozen=True)
class DenseDFT(_Products):
    """D as one matrix: rows (frequency, re/im), columns the window's pixels."""

    matrix: Float[Tensor, "two_f pixels"]

    def analysis(self, x: Float[Tensor, "pixels c b"]) -> Float[Tensor, "f two_c b"]:
        """Return D x, ordered (frequency, (re/im, channel), batch)."""
        _, c, b = x.shape
        return product(self.matrix, x.reshape(x.shape[0], c * b)).view(-1, 2 * c, b)

    def _last_product(self, u: Float[Tensor, "f two_c b"]) -> tuple[Tensor, Tensor]:
        return self.matrix.mT, u.reshape(self.matrix.shape[0], -1)

    def cropped(self, window: Window) -> "DenseDFT":
        """Return the columns of a window, bit for bit, of the D of its whole grid."""
        (top, left), (h, w) = window.corner, window.size
        columns = self.matrix.view(-1, *window.grid)[:, top : top + h, left : left + w]
        return DenseDFT(columns.reshape(-1, h * w))


@dataclass(frozen=True)
class SeparableDFT(_Products):
    """D as a real DFT along the height, then a complex one along the width for each height frequency."""

    height: Float[Tensor, "two_kh h"]
    width: Float[Tensor, "two_kw two_w"]

    def analysis(self, x: Float[Tensor, "pixels c b"]) -> Float[Tensor, "f two_c b"]:
        """Return D x, ordered (frequency, (re/im, channel), batch)."""
        return (self.width @ self.lines(x)).view(-1, 2 * x.shape[1], x.shape[2])

    def lines(self, x: Float[Tensor, "pixels c b"]) -> Float[Tensor, "height_f two_w cb"]:
        """Return x transformed along its height."""
        (_, c, b), h, w = x.shape, self.height.shape[1], self.width.shape[1] // 2
        return product(self.height, x.reshape(h, w * c * b)).view(-1, 2 * w, c * b)

    def _last_product(self, u: Float[Tensor, "f two_c b"]) -> tuple[Tensor, Tensor]:
        # The transform undone along the width has rows (height frequency, re/im) and columns (w, c, b).
        undone = self.width.mT @ u.reshape(self.height.shape[0] // 2, self.width.shape[0], -1)
        return self.height.mT, undone.reshape(self.height.shape[0], -1)

    def cropped(self, window: Window) -> "SeparableDFT":
        """Return the columns of a window, bit for bit, of the D of its whole grid."""
        (top, left), (h, w) = window.corner, window.size
        width = self.width.view(-1, 2, window.grid[1])[:, :, left : left + w]
        return SeparableDFT(self.height[:, top : top + h].contiguous(), width.reshape(-1, 2 * w))


RealDFT = DenseDFT | SeparableDFT


def is_dense(grid: tuple[int, int], device: torch.device) -> bool:
    """Whether the dense form is used on this grid and device."""
    return grid[0] * grid[1] <= DENSE_GRID_PIXELS.get(device.type, DENSE_GRID_PIXELS["cuda"])


@memoized(64)
def real_dft(window: Window, *, dense: bool, dtype: torch.dtype, device: torch.device) -> RealDFT:
    """Return D for the window, rounded once from float64 to `dtype`."""
    form = _dense(window) if dense else _separable(window)
    return type(form)(*(factor.to(device=device, dtype=dtype) for factor in form.factors()))


@memoized(64)
def frequencies(grid: tuple[int, int], *, dense: bool) -> Int[Tensor, "f 2"]:
    """Return the frequencies (vertical, horizontal) in the row order of `real_dft`."""
    H, W = grid
    if not dense:
        return torch.cartesian_prod(torch.arange(H // 2 + 1), torch.arange(W))
    pairs = [
        (v, u)
        for u in range(W // 2 + 1)
        for v in range(H)
        if not (u == 0 or 2 * u == W) or v <= H // 2  # on these lines v and -v are conjugates
    ]
    return torch.tensor(pairs)


@memoized(64)
def kernel_basis(
    grid: tuple[int, int],
    taps: tuple[int, int],
    *,
    dense: bool,
    dtype: torch.dtype,
    device: torch.device,
    corner: tuple[int, int] = (0, 0),
) -> Float[Tensor, "two_f taps"]:
    """Return the matrix that takes a kernel's taps to its spectrum: rows (re/im, frequency), unscaled.

    The first tap lies at `corner`.
    """
    return _basis(grid, frequencies(grid, dense=dense), taps, corner).to(device=device, dtype=dtype)


@memoized(64)
def half_basis(
    grid: tuple[int, int], taps: tuple[int, int], *, dtype: torch.dtype, device: torch.device, corner: tuple[int, int]
) -> Float[Tensor, "two_f taps"]:
    """Return the matrix that takes taps to the frequencies of `torch.fft.rfft2` on the grid, otherwise as above."""
    freq = torch.cartesian_prod(torch.arange(grid[0]), torch.arange(grid[1] // 2 + 1))
    return _basis(grid, freq, taps, corner).to(device=device, dtype=dtype)


def _basis(
    grid: tuple[int, int], freq: Int[Tensor, "f 2"], taps: tuple[int, int], corner: tuple[int, int]
) -> Float[Tensor, "two_f taps"]:
    angle = _angles(grid, freq, _pixels(taps, corner))
    return torch.cat((angle.cos(), -angle.sin()))


def _dense(window: Window) -> DenseDFT:
    H, W = window.grid
    freq = frequencies(window.grid, dense=True)
    angle = _angles(window.grid, freq, _pixels(window.size, window.corner))
    alone = ((2 * freq[:, 0]) % H == 0) & ((2 * freq[:, 1]) % W == 0)
    scale = torch.where(alone, 1.0, 2.0)[:, None].double().div(H * W).sqrt()
    sine = torch.where(alone[:, None], 0.0, -angle.sin())  # exactly zero where the frequency is self-conjugate
    return DenseDFT(torch.stack((scale * angle.cos(), scale * sine), dim=1).flatten(0, 1))


def _separable(window: Window) -> SeparableDFT:
    (H, W), (h, w), (top, left) = window.grid, window.size, window.corner
    v = torch.arange(H // 2 + 1)
    angle = _reduced(v[:, None] * (top + torch.arange(h)), H)
    scale = torch.where((2 * v) % H == 0, 1.0, 2.0)[:, None].double().div(H).sqrt()
    height = torch.stack((scale * angle.cos(), -scale * angle.sin()), dim=1).flatten(0, 1)
    angle = _reduced(torch.arange(W)[:, None] * (left + torch.arange(w)), W)
    cos, sin = angle.cos() / math.sqrt(W), angle.sin() / math.sqrt(W)
    rows = torch.stack((torch.cat((cos, sin), 1), torch.cat((-sin, cos), 1)), dim=1)  # kw (re/im) (re/im w)
    return SeparableDFT(height, rows.flatten(0, 1))


def _pixels(size: tuple[int, int], corner: tuple[int, int]) -> Int[Tensor, "pixels 2"]:
    rows, columns = torch.arange(size[0]) + corner[0], torch.arange(size[1]) + corner[1]
    return torch.cartesian_prod(rows, columns).view(-1, 2)


def _angles(grid: tuple[int, int], freq: Int[Tensor, "f 2"], pixels: Int[Tensor, "p 2"]) -> Float[Tensor, "f p"]:
    H, W = grid
    turns = freq[:, :1] * pixels[:, 0] * W + freq[:, 1:] * pixels[:, 1] * H
    return _reduced(turns, H * W)


def _reduced(turns: Int[Tensor, "..."], period: int) -> Float[Tensor, "..."]:
    """Return 2 pi turns / period in float64, the fraction of a turn reduced in integers first."""
    return (turns % period).double() * (2 * math.pi / period)


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
