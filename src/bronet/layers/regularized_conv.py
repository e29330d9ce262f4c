"""A convolution that is only Lipschitz-regularised: the stem of BRONet, and the backbone of LiResNet (App. B.2).

Training sees a differentiable power-iteration estimate of its norm, which is a lower bound and no certificate; a
certificate uses a proved upper bound of the kernel as stored.
"""

from dataclasses import replace
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_input

from bronet.errors import BronetError
from bronet.layers.base import LipschitzLayer, require_channels, require_counts, require_shape
from bronet.layers.residual_kernel import IdentityResidual
from bronet.ortho.spd import unit_scaled
from bronet.proof.convolution import EXPLICIT_INPUTS, absolute_convolution_norm, convolution_norm
from bronet.proof.proved_map import Product, ProvedMap, linear

# Taps times input channels up to which a GPU convolves by products: a library's result would have to be rearranged.
_FEW_TAPS = 128
_ALIGNMENT = 16


class _Geometry(NamedTuple):
    stride: int
    padding: int


def convolve_patches(x: Tensor, kernel: Tensor, *, stride: int, padding: int) -> Tensor:
    """Return the convolution as one product per pixel, in the memory order (h, w, c, b) that the next layer wants."""
    k = kernel.shape[-1]
    h, w = ((size + 2 * padding - k) // stride + 1 for size in x.shape[-2:])
    fill = -kernel[0].numel() % _ALIGNMENT  # tensor cores are slow on odd lengths
    padded = F.pad(x, (padding, padding, padding, padding))
    windows = padded.unfold(2, k, stride).unfold(3, k, stride).permute(2, 3, 1, 4, 5, 0)  # h w c k k b, a view
    patches = F.pad(windows.reshape(h * w, -1, x.shape[0]), (0, 0, 0, fill))
    return (F.pad(kernel.flatten(1), (0, fill)) @ patches).view(h, w, kernel.shape[0], x.shape[0]).permute(3, 2, 0, 1)


class LipschitzRegularizedConv2d(LipschitzLayer):
    """A zero-padded, strided convolution with a differentiable estimate and a proved bound of its norm.

    Args:
        input_size: image size at which training estimates the norm; the forward takes any size.
        residual_depth: L of the kernel I + alpha / sqrt(L) K; none by default (square kernels only).
    """

    parameter_methods: ClassVar[tuple[str, ...]] = ("lipschitz_estimate", "update_estimate")
    power_vector: Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        input_size: tuple[int, int],
        stride: int = 1,
        padding: int = 0,
        residual_depth: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_counts(in_channels=in_channels, out_channels=out_channels, kernel_size=kernel_size, stride=stride)
        if padding < 0:
            raise BronetError(f"padding must be at least 0, got {padding}")
        if min(input_size) + 2 * padding < kernel_size:
            raise BronetError(
                f"input_size must be at least kernel_size - 2 padding = {kernel_size - 2 * padding}, got {input_size}"
            )
        self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, kernel_size
        self.geometry, self.input_size = _Geometry(stride, padding), input_size
        self.weight = nn.Parameter(
            torch.empty(out_channels, in_channels, kernel_size, kernel_size, device=device, dtype=dtype)
        )
        self.residual = (
            None
            if residual_depth is None
            else IdentityResidual(out_channels, residual_depth, device=device, dtype=dtype)
        )
        vector = torch.empty(1, in_channels, *input_size, device=device, dtype=dtype)
        self.register_buffer("power_vector", vector)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Orthogonal kernel, or near the identity with the residual re-parameterisation."""
        if self.residual is None:
            with torch.no_grad():  # the factorisation behind it does not exist in half precision
                self.weight.copy_(nn.init.orthogonal_(self.weight.float()))
        else:
            nn.init.normal_(self.weight, std=1 / (self.weight.shape[0] * self.kernel_size**2))
            self.residual.reset_parameters()
        nn.init.normal_(self.power_vector)

    def kernel(self, dtype: torch.dtype) -> Tensor:
        """Return the kernel that is convolved with, computed in this precision."""
        weight = self.weight.to(dtype)
        return weight if self.residual is None else self.residual(weight)

    def forward(self, x: Tensor) -> Tensor:
        require_channels(x, self.in_channels, "LipschitzRegularizedConv2d")
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        kernel, (stride, padding) = self.kernel(x.dtype), self.geometry
        if x.is_cuda and kernel[0].numel() <= _FEW_TAPS:
            return convolve_patches(x, kernel, stride=stride, padding=padding)
        return F.conv2d(x, kernel, stride=stride, padding=padding)

    @torch.no_grad()
    def update_estimate(self, steps: int) -> None:
        """Take power-iteration steps on J'J, warm-started from the stored vector."""
        v = self.power_vector
        kernel = unit_scaled(self.kernel(v.dtype))  # the direction is the same, and squares cannot underflow
        for _ in range(steps):
            w = F.conv2d(v, kernel, stride=self.geometry.stride, padding=self.geometry.padding)
            v = conv2d_input(v.shape, kernel, w, stride=self.geometry.stride, padding=self.geometry.padding)
            size = v.norm()
            v = torch.where(size > 0, v / size, self.power_vector)  # a zero kernel leaves the vector as it was
        self.power_vector.copy_(v)

    def lipschitz_estimate(self) -> Tensor:
        """Return |J v| / |v| for the stored vector: a lower bound, differentiable in the kernel."""
        v = self.power_vector
        image = F.conv2d(v, self.kernel(v.dtype), stride=self.geometry.stride, padding=self.geometry.padding)
        return image.norm() / v.norm()

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        require_shape(shape, self.in_channels, "LipschitzRegularizedConv2d", images=True)
        kernel = self.kernel(torch.float64).detach().clone()  # a float64 model must not share its numbers with a proof
        (stride, padding), k = self.geometry, self.kernel_size
        norm = convolution_norm(kernel, (shape[1], shape[2]), stride=stride, padding=padding)
        products = [Product(norm, absolute_convolution_norm(kernel), self.in_channels * k * k)]
        size = tuple((s + 2 * padding - k) // stride + 1 for s in shape[1:])
        flat = kernel.flatten(1)

        def apply(x: Tensor) -> Tensor:
            # Through a matrix product, whose rounding is known; a library's convolution may use transforms.
            patches = F.unfold(x, k, padding=padding, stride=stride)
            return (flat @ patches).unflatten(-1, size)

        proved = linear(apply, (self.out_channels, *size), products, norm)
        return replace(proved, remark=self._looseness(norm, (shape[1], shape[2])))

    def _looseness(self, norm: float, size: tuple[int, int]) -> str:
        """Say how far the bound can lie above the norm, where it is not the norm itself; the estimate lies below it."""
        if size != self.input_size or self.in_channels * size[0] * size[1] <= EXPLICIT_INPUTS:
            return ""
        estimate = float(self.lipschitz_estimate().detach())
        return f"circulant bound, at most {norm / estimate - 1:.1%} above the norm" if estimate > 0 else ""

    def lipschitz_bound(self, input_size: tuple[int, int] | None = None) -> float:
        """Return a proved upper bound on the norm for images of this size (default: the size given at construction)."""
        size = self.input_size if input_size is None else input_size
        stride, padding = self.geometry
        return convolution_norm(self.kernel(torch.float64).detach(), size, stride=stride, padding=padding)

    def extra_repr(self) -> str:
        stride, padding = self.geometry
        channels = f"{self.in_channels}, {self.out_channels}"
        return f"{channels}, kernel_size={self.kernel_size}, stride={stride}, padding={padding}"
