"""Convolutions with an explicit kernel: AOL, BCOP, and a plain one for comparing cost.

The image keeps its size; a stride is a pixel unshuffle before. Proofs go through patches and matrix products.
"""

from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.layers.base import DerivedLayer, require_channels, require_shape
from bronet.layers.rivals.arguments import require_convolution, require_odd_kernel, require_size
from bronet.layers.shape import PixelUnshuffle, unshuffle
from bronet.ortho.bcop import BJORCK_STEPS, bcop_kernel
from bronet.ortho.rescaling import Rescaled, rescaled
from bronet.proof.convolution import (
    absolute_convolution_norm,
    kept_size_norm,
    pad_edges,
    patch_convolution,
    weighted_sum_norm,
)
from bronet.proof.proved_map import Product, ProvedMap, linear


class SpatialConv2d(DerivedLayer[Tensor]):
    """A convolution with the kernel (c_out, c_in, k, k) that `derive` makes, for images of any size.

    Args:
        in_channels, out_channels: before the pixel unshuffle, after the convolution.
        kernel_size: odd, so that the image keeps its size.
        stride: turned into channels by a pixel unshuffle before the convolution.
        circular: wrap around the image instead of padding it with zeros.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, *, stride: int = 1, circular: bool = False
    ) -> None:
        super().__init__()
        require_convolution(in_channels, out_channels, kernel_size)
        require_odd_kernel(kernel_size, type(self).__name__)
        self.unshuffle = PixelUnshuffle(stride)
        self.image_channels = in_channels
        self.in_channels, self.out_channels = in_channels * stride**2, out_channels
        self.kernel_size, self.circular = kernel_size, circular

    @abstractmethod
    def derive(self, key: object) -> Tensor:
        """Return the kernel in the precision `key`."""

    def kernel_norm(self, kernel: Tensor, size: tuple[int, int]) -> float:
        """Return a proved upper bound on the norm of the convolution with this kernel on images of this size."""
        return kept_size_norm(kernel, size, circular=self.circular)

    def forward(self, x: Tensor) -> Tensor:
        require_channels(x, self.image_channels, type(self).__name__)
        x = self.unshuffle(x)
        kernel = self.derived(self.precision_for(x))
        if not torch.is_autocast_enabled(x.device.type):
            kernel = kernel.to(x.dtype)
        return convolve_kept_size(x, kernel, circular=self.circular)

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        require_shape(shape, self.image_channels, type(self).__name__, images=True)
        stride = self.unshuffle.factor
        size = (shape[1] // stride, shape[2] // stride)
        with torch.no_grad():
            kernel = self.derive(torch.float64).clone()  # a float64 parameter may be the kernel itself
        norm = self.kernel_norm(kernel, size)
        products = [Product(norm, absolute_convolution_norm(kernel), kernel[0].numel())]
        circular = self.circular
        apply = lambda x: patch_convolution(unshuffle(x, stride), kernel, circular=circular)  # noqa: E731
        return linear(apply, (self.out_channels, *size), products, norm)

    def extra_repr(self) -> str:
        return (
            f"{self.image_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.unshuffle.factor}, circular={self.circular}"
        )


class KernelConv2d(SpatialConv2d):
    """One whose parameter has the shape of its kernel; arguments as in SpatialConv2d."""

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
        super().__init__(in_channels, out_channels, kernel_size, stride=stride, circular=circular)
        shape = (out_channels, self.in_channels, kernel_size, kernel_size)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    @abstractmethod
    def reset_parameters(self) -> None:
        """Start anew."""


def convolve_kept_size(x: Tensor, kernel: Tensor, *, circular: bool) -> Tensor:
    """Return the library's convolution with edges such that the image keeps its size; odd kernels."""
    margin = kernel.shape[-1] // 2
    if circular:
        return F.conv2d(pad_edges(x, margin, circular=True), kernel)
    return F.conv2d(x, kernel, padding=margin)


class AOLConv2d(KernelConv2d):
    """x -> K T^-1/2 x, T_i the absolute sum of row i of the kernel's autocorrelation; arguments as in SpatialConv2d."""

    def reset_parameters(self) -> None:
        """Start at the identity kernel, where the rescaling does nothing."""
        nn.init.dirac_(self.weight)

    def derive(self, key: object) -> Tensor:
        assert isinstance(key, torch.dtype)
        return self._rescaled(key).kernel

    def _rescaled(self, dtype: torch.dtype) -> Rescaled:
        weight = self.weight.to(dtype)
        return rescaled(weight, weight.new_ones(self.in_channels))

    def kernel_norm(self, kernel: Tensor, size: tuple[int, int]) -> float:
        with torch.no_grad():
            return weighted_sum_norm(kernel, self._rescaled(torch.float64).weights)

    def lipschitz_bound(self, input_size: tuple[int, int] | None = None) -> float:
        """Return the proved bound, the same for every size."""
        with torch.no_grad():
            return weighted_sum_norm(*self._rescaled(torch.float64))


class BCOPConv2d(SpatialConv2d):
    """A (semi-)orthogonal core matrix and 2 (k - 1) projections of half rank on the smaller side.

    Args: as in SpatialConv2d; `steps` of Bjorck's iteration, 20 in the published layer.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        *,
        steps: int = BJORCK_STEPS,
        stride: int = 1,
        circular: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride=stride, circular=circular)
        if steps < 1:
            raise BronetError(f"steps of Bjorck's iteration must be at least 1, got {steps}")
        self.steps = steps
        c = min(self.in_channels, out_channels)
        self.core = nn.Parameter(torch.empty(out_channels, self.in_channels, device=device, dtype=dtype))
        shape = (2 * (kernel_size - 1), c, max(1, c // 2))
        halves = torch.empty(shape, device=device, dtype=dtype)
        # A 1 x 1 kernel is the core alone. An empty parameter would never get a gradient.
        self.halves = nn.Parameter(halves) if kernel_size > 1 else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start from random orthogonal matrices, where Bjorck's iteration has nothing to do."""
        if self.core.device.type == "meta":
            return
        with torch.no_grad():  # the factorisation behind it does not exist in half precision
            self.core.copy_(nn.init.orthogonal_(self.core.float()))
            for half in self.halves if self.halves is not None else ():
                half.copy_(nn.init.orthogonal_(half.float()))

    def derive(self, key: object) -> Tensor:
        assert isinstance(key, torch.dtype)
        halves = self.halves.to(key) if self.halves is not None else None
        return bcop_kernel(self.core.to(key), halves, steps=self.steps)

    def lipschitz_bound(self, input_size: tuple[int, int] | None = None) -> float:
        """Return the proved bound for this size, which must be given."""
        return self.proved((self.image_channels, *require_size(input_size, "BCOPConv2d"))).lipschitz


class StandardConv2d(KernelConv2d):
    """x -> K x; arguments as in SpatialConv2d. No guarantee on its norm, which is bounded as stored."""

    def reset_parameters(self) -> None:
        """Start from normals that keep the variance (Kaiming, linear)."""
        nn.init.kaiming_normal_(self.weight, nonlinearity="linear")

    def derive(self, key: object) -> Tensor:
        assert isinstance(key, torch.dtype)
        return self.weight.to(key)

    def lipschitz_bound(self, input_size: tuple[int, int] | None = None) -> float:
        """Return the proved bound for this size, which must be given."""
        return self.proved((self.image_channels, *require_size(input_size, "StandardConv2d"))).lipschitz
