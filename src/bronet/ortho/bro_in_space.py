"""The BRO convolution with V and V* as ordinary convolutions: what a CPU runs where n is small against the kernel.

    y = E x - 2 V p,    p = S^-1 z,    z = V* x,    S = V*V + e I

V* and V have k x k taps between c and n channels, and convolutions are what a CPU's libraries do best. Only S^-1 needs
a Fourier transform, of n channels instead of c. Images padded with zeros never wrap around the circular grid, which is
what makes the two convolutions ordinary ones; `fits` says where that holds.

The backward pass for a gradient g of y, with q = S^-1 V* g: the gradient of x is E'g - 2 V q, that of V is that of the
two convolutions, -2 (g p' + x q') over all pixels, and what comes through S: its gradient at a frequency is
2 q p*, that of the autocorrelation's taps the Fourier transform of it, and V appears twice in the autocorrelation.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Complex, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from bronet.ortho.bro_convolution import Geometry, pixels_first
from bronet.ortho.products import is_traced, memoized
from bronet.ortho.real_dft import half_basis
from bronet.ortho.reflector import embed_channels
from bronet.ortho.spd import add_ridge, ridge_slope, scale_of
from bronet.ortho.spectrum import autocorrelation, tap_shifts

# Half as many as a processor multiplies at once.
_FEW_CHANNELS = 8


class SpatialFactors(NamedTuple):
    """V* and -2 V as kernels in the memory order of convolutions, V scaled to a largest entry of one, and S^-1.

    The inverse is given at the frequencies of a real Fourier transform of the grid.
    """

    adjoint: Float[Tensor, "n c k k"]
    minus_twice: Float[Tensor, "c n k k"]
    inverse: Complex[Tensor, "f n n"]

    def between(self, c_in: int, c_out: int) -> "SpatialFactors":
        """Return those of images of so many channels."""
        return self._replace(adjoint=_in_order(self.adjoint[:, :c_in]), minus_twice=self.minus_twice[:c_out])


def fits(geometry: Geometry, taps: tuple[int, int]) -> bool:
    """Whether no image wraps around: it is padded and cropped again, by half the kernel or more."""
    windows = geometry.windows
    room = (2 * pad - k + 1 for pad, k in zip(windows.source.corner, taps, strict=True))
    return windows.source == windows.target and min(room) >= 0


@torch.no_grad()
def spatial_factors(V: Float[Tensor, "c n k k"], geometry: Geometry) -> SpatialFactors:
    """Return what the convolution computes with, in V's precision."""
    V, (_, n, k, _) = V / scale_of(V), V.shape
    taps = autocorrelation(V).permute(2, 3, 0, 1).reshape(-1, n * n)
    S = torch.complex(*(_shift_basis(geometry, k, V) @ taps).view(2, -1, n, n))
    add_ridge(S, geometry.ridge)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky_ex(S).L)
    return SpatialFactors(_in_order(V.transpose(0, 1)), _in_order(-2 * V.flip(-2, -1)), inverse)


def reflect_in_space(
    x: Float[Tensor, "b c_in h w"], factors: SpatialFactors, geometry: Geometry
) -> Float[Tensor, "b c_out h w"]:
    """Return the BRO convolution of x for given factors; its memory order is (b, h, w, c)."""
    return _reflected(pixels_first(x), factors, geometry)[0]


class SpatialReflection(torch.autograd.Function):
    """x, V -> y with the backward pass of the module's docstring."""

    @staticmethod
    def forward(ctx, x: Tensor, V: Tensor, geometry: Geometry) -> Tensor:  # type: ignore[no-untyped-def, override]
        factors, x = spatial_factors(V, geometry), pixels_first(x)
        y, p, spectrum = _reflected(x, factors.between(x.shape[1], geometry.c_out), geometry)
        ctx.save_for_backward(x, p, spectrum, scale_of(V), *factors)
        ctx.geometry = geometry
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:  # type: ignore[no-untyped-def, override]
        x, p, p_spectrum, scale, *kept = ctx.saved_tensors
        factors, g, geometry = SpatialFactors(*kept), pixels_first(grads[0]), ctx.geometry
        V, (n, c, k, _) = factors.adjoint, factors.adjoint.shape
        gx, q, q_spectrum = _reflected(g, factors.between(g.shape[1], x.shape[1]), geometry)
        if not ctx.needs_input_grad[1]:
            return gx, None, None
        direct = _tap_products(g, p, c, k) + _tap_products(x, q, c, k)
        share = _share_of_half(geometry.windows.source.grid, V.dtype, V.device)
        products = (_by_frequency(q_spectrum).mT @ _by_frequency(p_spectrum).conj()) * share
        traces = products.diagonal(dim1=1, dim2=2)
        traces += ridge_slope(geometry.ridge, n, V.dtype) * traces.real.sum(-1, keepdim=True)
        taps = _shift_basis(geometry, k, V).mT @ torch.cat((products.real, products.imag)).flatten(1)
        taps = taps.index_select(0, tap_shifts((k, k), V.device))
        pairs = taps.view(k * k, k * k, n, n).permute(0, 2, 1, 3).reshape(k * k * n, k * k * n)
        through = V.permute(1, 2, 3, 0).reshape(c, -1) @ (pairs + pairs.mT)
        gV = through.view(c, k, k, n).permute(0, 3, 1, 2) - direct.to(V.dtype)
        return gx, gV * (2 / scale), None


def _reflected(
    x: Float[Tensor, "b c_in h w"], factors: SpatialFactors, geometry: Geometry
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, p and the spectrum of p."""
    adjoint, grid = factors.adjoint.to(x.dtype), geometry.windows.source.grid
    z = _analysed(x, adjoint)
    Z = torch.fft.rfft2(z.to(factors.inverse.real.dtype).contiguous(), s=grid)
    solved = (_by_frequency(Z) @ factors.inverse.mT).flatten(1).mT.reshape(Z.shape)
    p = torch.fft.irfft2(solved, s=grid)[..., : z.shape[-2], : z.shape[-1]]
    p = p.to(x.dtype).contiguous(memory_format=torch.channels_last)
    v = F.conv2d(p, factors.minus_twice.to(x.dtype))
    return v.add_(embed_channels(x, v.shape[1], dim=1)), p, solved


def _analysed(x: Float[Tensor, "b c h w"], kernel: Float[Tensor, "n c k k"]) -> Float[Tensor, "b n h_out w_out"]:
    """Return V* x; few channels for two neighbouring pixels at once, which otherwise leave half a register empty."""
    n, _, k, _ = kernel.shape
    if n > _FEW_CHANNELS or (x.shape[3] + k - 1) % 2 or is_traced():
        return F.conv2d(x, kernel, padding=k - 1)
    neighbours = _in_order(torch.cat((F.pad(kernel, (0, 1)), F.pad(kernel, (1, 0)))))
    z = F.conv2d(x, neighbours, stride=(1, 2), padding=k - 1)
    return z.permute(0, 2, 3, 1).reshape(len(x), z.shape[2], -1, n).permute(0, 3, 1, 2)


def _in_order(kernel: Tensor) -> Tensor:
    return kernel.contiguous(memory_format=torch.channels_last)


def _by_frequency(spectrum: Complex[Tensor, "b n kh w"]) -> Complex[Tensor, "f b n"]:
    b, n = spectrum.shape[:2]
    return spectrum.reshape(b * n, -1).mT.contiguous().view(-1, b, n)


@memoized(64)
def _share_of_half(grid: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Float[Tensor, "f 1 1"]:
    """Return the weights with which the frequencies of the half that is kept make the mean over all."""
    u = torch.arange(grid[1] // 2 + 1).repeat(grid[0])
    counted = torch.where((2 * u) % grid[1] == 0, 1.0, 2.0).double() / (grid[0] * grid[1])
    return counted.to(device=device, dtype=dtype)[:, None, None]


def _shift_basis(geometry: Geometry, k: int, like: Tensor) -> Float[Tensor, "two_f shifts"]:
    """Return the matrix from an autocorrelation's taps, at shifts from 1 - k to k - 1, to its spectrum."""
    shifts, grid = (2 * k - 1, 2 * k - 1), geometry.windows.source.grid
    return half_basis(grid, shifts, dtype=like.dtype, device=like.device, corner=(1 - k, 1 - k))


def _tap_products(g: Tensor, p: Tensor, c: int, k: int) -> Float[Tensor, "c n k k"]:
    """Return the sum over pixels t of g[t] p[t + k - 1 - s]' for every tap s, with zeros for channels that g lacks."""
    kernel = _in_order(p.new_empty(g.shape[1], p.shape[1], k, k))
    _, gradient, _ = torch.ops.aten.convolution_backward(
        g, p, kernel, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False]
    )
    return embed_channels(gradient.flip(-2, -1), c, dim=0)
