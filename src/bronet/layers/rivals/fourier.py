"""Convolutions given by one matrix W_f per frequency: Cayley and Cholesky here, LOT in its own file.

    y = D' W_f D x

with the real basis D of the padded grid, half of the spectrum, and W_f from the kernel's centred spectrum. The bound is
that of the W_f as stored, times the stored basis' own defect; how W_f was made need not be trusted.
"""

import math
from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from bronet.layers.base import DerivedLayer, require_channels, require_shape
from bronet.layers.residual_kernel import IdentityResidual
from bronet.layers.rivals.arguments import require_convolution, require_size
from bronet.layers.shape import PixelUnshuffle, unshuffle
from bronet.ortho.bro_convolution import Windows
from bronet.ortho.cayley import cayley
from bronet.ortho.cholesky import cholesky_orthogonal
from bronet.ortho.real_dft import RealDFT, is_dense, real_dft
from bronet.ortho.spd import CHOLESKY_RIDGE
from bronet.ortho.spectrum import centred_spectrum, real_blocks
from bronet.proof.proved_map import Product, ProvedMap, linear
from bronet.proof.reflector import FourierFrame
from bronet.proof.rounding import up
from bronet.proof.spectral import absolute_norm, largest_singular_value


class GridKey(NamedTuple):
    """What derived weights depend on besides the parameters."""

    grid: tuple[int, int]
    dense: bool
    dtype: torch.dtype


class FourierConv2d(DerivedLayer[Tensor]):
    """A convolution given by a matrix for each frequency, for images of any size.

    Args:
        in_channels, out_channels: where they differ, the layer is semi-orthogonal.
        kernel_size: taps of the parameter per axis; the convolution reaches over the whole padded grid.
        stride: turned into channels by a pixel unshuffle before the convolution.
        circular: wrap around the image instead of padding it with zeros and cropping it afterwards.
        residual_depth: L of the parameter I + alpha / sqrt(L) V; none by default.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        *,
        stride: int = 1,
        circular: bool = False,
        residual_depth: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_convolution(in_channels, out_channels, kernel_size)
        self.unshuffle = PixelUnshuffle(stride)
        self.image_channels = in_channels
        self.in_channels, self.out_channels = in_channels * stride**2, out_channels
        self.kernel_size, self.padding = kernel_size, 0 if circular else kernel_size // 2
        shape = (out_channels, self.in_channels, kernel_size, kernel_size)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.residual = (
            None
            if residual_depth is None
            else IdentityResidual(out_channels, residual_depth, device=device, dtype=dtype)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start at the identity kernel, or near it with the residual re-parameterisation."""
        if self.residual is None:
            nn.init.dirac_(self.weight)
        else:
            nn.init.normal_(self.weight, std=1 / (self.weight.shape[0] * self.kernel_size**2))
            self.residual.reset_parameters()

    @abstractmethod
    def orthogonalize(self, V: Tensor) -> Tensor:
        """Return the matrices W of the parameter's complex matrices V, (f, c_out, c_in)."""

    def spectrum(self, grid: tuple[int, int], *, dense: bool, dtype: torch.dtype) -> Tensor:
        """Return the parameter's matrix at every frequency, computed in this precision."""
        weight = self.weight.to(dtype)
        kernel = weight if self.residual is None else self.residual(weight)
        return centred_spectrum(kernel, grid, dense=dense)

    def derive(self, key: object) -> Tensor:
        assert isinstance(key, GridKey)
        return real_blocks(self.orthogonalize(self.spectrum(key.grid, dense=key.dense, dtype=key.dtype)))

    def forward(self, x: Tensor) -> Tensor:
        require_channels(x, self.image_channels, type(self).__name__)
        x = self.unshuffle(x)
        windows = self._windows((x.shape[-2], x.shape[-1]))
        dense = is_dense(windows.source.grid, x.device)
        precision = self.precision_for(x)
        W = self.derived(GridKey(windows.source.grid, dense, precision))
        if not torch.is_autocast_enabled(x.device.type):
            W = W.to(x.dtype)
        basis = real_dft(windows.source, dense=dense, dtype=W.dtype, device=x.device)
        return apply_spectrum(x, W, basis)

    def _windows(self, size: tuple[int, int]) -> Windows:
        return Windows.of(size, self.padding, keep_padding=False)

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        require_shape(shape, self.image_channels, type(self).__name__, images=True)
        stride = self.unshuffle.factor
        size = (shape[1] // stride, shape[2] // stride)
        windows = self._windows(size)
        frame = FourierFrame.of(windows, self.weight.device)
        with torch.no_grad():
            V = self.spectrum(windows.source.grid, dense=frame.dense, dtype=torch.float64)
            W = real_blocks(self.orthogonalize(V))
        remark, norm = self.remark(W), largest_singular_value(W)
        products = [*frame.analysis(), Product(norm, absolute_norm(W), W.shape[-1]), *frame.synthesis()]
        apply = lambda x: apply_spectrum(unshuffle(x, stride), W, frame.source)  # noqa: E731
        proved = linear(apply, (self.out_channels, *size), products, up(norm * frame.norm**2))
        return replace(proved, remark=remark)

    def remark(self, W: Tensor) -> str:
        """Return what a reader of a certificate should know of the matrices W; nothing by default."""
        return ""

    def lipschitz_bound(self, input_size: tuple[int, int] | None = None) -> float:
        """Return the proved bound for this size, which must be given: other sizes have other frequencies."""
        return self.proved((self.image_channels, *require_size(input_size, type(self).__name__))).lipschitz

    def extra_repr(self) -> str:
        return (
            f"{self.image_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.unshuffle.factor}, padding={self.padding}"
        )


def apply_spectrum(x: Tensor, W: Tensor, basis: RealDFT) -> Tensor:
    """Return D' W D x for (b, c, h, w) images; the memory order of the result is (h, w, c, b)."""
    b, c, h, w = x.shape
    pixels = x.permute(2, 3, 1, 0).reshape(h * w, c, b)
    y = basis.synthesis(W @ basis.analysis(pixels))
    return y.view(h, w, W.shape[-2] // 2, b).permute(3, 2, 0, 1)


class CayleyConv2d(FourierConv2d):
    """x -> (I - A)(I + A)^-1 x with A = V - V*; arguments as in FourierConv2d.

    There is no residual re-parameterisation: its identity would cancel in V - V*, and V = 0 is the identity already.
    """

    recordable: ClassVar[bool] = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        *,
        stride: int = 1,
        circular: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride=stride, circular=circular, device=device, dtype=dtype
        )

    def reset_parameters(self) -> None:
        """Start like a plain convolution (uniform, variance 1 / (3 c_in k^2)), as the published layer does."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def orthogonalize(self, V: Tensor) -> Tensor:
        return cayley(V)


class CholeskyConv2d(FourierConv2d):
    """x -> L^-1 V x at every frequency; arguments as in FourierConv2d. The ridge is that of the dense layer."""

    recordable: ClassVar[bool] = False

    def orthogonalize(self, V: Tensor) -> Tensor:
        return cholesky_orthogonal(V, ridge=CHOLESKY_RIDGE)
