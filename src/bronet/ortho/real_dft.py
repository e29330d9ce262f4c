"""The orthonormal real Fourier basis of a padded grid, as real matrices: no FFT, no complex numbers.

`D` maps the pixels of an h x w window of an H x W grid to (frequency, re/im) rows, one frequency of each conjugate
pair, scaled so that D'D = I; padding before and cropping after a circular operation are therefore inside D.
Two forms of the same map: dense, one matrix, for small grids; separable, a real DFT along the height and a
complex one (written as real) along the width, for large ones. The separable form keeps both members
of a conjugate pair on its self-conjugate lines, each with half the weight, so D'D = I holds for it as well.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bronet.ortho.products import memoized, product

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

    @abstractmethod
    def of_images(self, x: Float[Tensor, "b pixels c"]) -> Float[Tensor, "b two_f c"]:
        """Return D x of every image, whose pixels are rows; rows are ordered (frequency, re/im)."""

    @abstractmethod
    def to_images(self, residual: Float[Tensor, "b pixels c"], u: Float[Tensor, "b two_f c"]) -> Tensor:
        """Return 2 D'u - residual of every image."""


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

    def of_images(self, x: Float[Tensor, "b pixels c"]) -> Float[Tensor, "b two_f c"]:
        return torch.bmm(self.matrix.expand(len(x), -1, -1), x)

    def to_images(self, residual: Float[Tensor, "b pixels c"], u: Float[Tensor, "b two_f c"]) -> Tensor:
        return torch.baddbmm(residual, self.matrix.mT.expand(len(u), -1, -1), u, beta=-1, alpha=2)

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

    def of_images(self, x: Float[Tensor, "b pixels c"]) -> Float[Tensor, "b two_f c"]:
        (b, _, c), (two_kh, h) = x.shape, self.height.shape
        lines = torch.bmm(self.height.expand(b, -1, -1), x.reshape(b, h, -1)).view(b * two_kh // 2, -1, c)
        return torch.bmm(self.width.expand(len(lines), -1, -1), lines).view(b, -1, c)

    def to_images(self, residual: Float[Tensor, "b pixels c"], u: Float[Tensor, "b two_f c"]) -> Tensor:
        (b, _, c), (two_kh, h) = residual.shape, self.height.shape
        lines = u.reshape(b * two_kh // 2, -1, c)
        lines = torch.bmm(self.width.mT.expand(len(lines), -1, -1), lines).view(b, two_kh, -1)
        flat = residual.reshape(b, h, -1)
        height = self.height.mT.expand(b, -1, -1)
        return torch.baddbmm(flat, height, lines, beta=-1, alpha=2).view(residual.shape)

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
