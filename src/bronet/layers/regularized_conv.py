"""A convolution that is only Lipschitz-regularised: the stem of BRONet, and the backbone of LiResNet (App. B.2).

Training sees a differentiable power-iteration estimate of its norm, which is a lower bound and no certificate; a
certificate uses a proved upper bound of the kernel as stored.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_input

from bronet.errors import BronetError
from bronet.layers.base import to_autocast
from bronet.layers.convolution import Convolution, Options, PaddingMode
from bronet.ortho.spd import unit_scaled
from bronet.proof.proved_map import Product, ProvedMap, linear_map
from bronet.proof.spectral import EXPLICIT_INPUTS, absolute_convolution_norm, convolution_norm

# Taps times input channels up to which a GPU convolves by products: a library's result would have to be rearranged.
_FEW_TAPS = 128
_ALIGNMENT = 16


def convolve_patches(x: Tensor, kernel: Tensor, *, stride: int, padding: int) -> Tensor:
    """Return the convolution as one product per pixel, in the memory order (h, w, c, b) that the next layer wants."""
    k = kernel.shape[-1]
    h, w = ((size + 2 * padding - k) // stride + 1 for size in x.shape[-2:])
    fill = -kernel[0].numel() % _ALIGNMENT  # tensor cores are slow on odd lengths
    padded = F.pad(x, (padding, padding, padding, padding))
    windows = padded.unfold(2, k, stride).unfold(3, k, stride).permute(2, 3, 1, 4, 5, 0)  # h w c k k b, a view
    patches = F.pad(windows.reshape(h * w, -1, x.shape[0]), (0, 0, 0, fill))
    return (F.pad(kernel.flatten(1), (0, fill)) @ patches).view(h, w, kernel.shape[0], x.shape[0]).permute(3, 2, 0, 1)


def power_iteration(gram: Callable[[Tensor], Tensor], v: Tensor, steps: int) -> Tensor:
    """Return v after so many steps v <- J'J v / |J'J v|; where J'J v is zero, v stays as it was."""
    for _ in range(steps):
        moved = gram(v)
        size = moved.norm()
        v = torch.where(size > 0, moved / size, v)
    return v


class LipschitzRegularizedConv2d(Convolution[torch.dtype, Tensor]):
    """A zero-padded, strided convolution with a differentiable estimate and a proved bound of its norm.

    Guaranteed: the bound of the kernel as stored. Nothing holds it near one but a loss that sees the estimate.

    Args: as in `Convolution`. The stride is that of an ordinary convolution, without a pixel unshuffle.
        padding: any number of zeros on each side; without it the image keeps its size, up to the stride.
        input_size: must be given, as training estimates the norm at it; the layer still takes images of any size.
    """

    options: ClassVar[frozenset[str]] = frozenset({"residual_depth"})
    padding_modes: ClassVar[tuple[PaddingMode, ...]] = ("zeros",)
    least_padding: ClassVar[int | None] = 0
    unshuffles: ClassVar[bool] = False
    only_regularized: ClassVar[bool] = True
    parameter_methods: ClassVar[tuple[str, ...]] = ("lipschitz_estimate", "update_estimate")
    power_vector: Tensor

    def make_parameters(self, empty: Callable[..., Tensor], options: Options) -> None:
        k = self.kernel_size
        if self.input_size is None:
            raise BronetError("input_size must be given for a norm that training estimates at it, got None")
        if min(self.input_size) + 2 * self.padding < k:
            least = k - 2 * self.padding
            raise BronetError(f"input_size must be at least kernel_size - 2 padding = {least}, got {self.input_size}")
        super().make_parameters(empty, options)
        self.register_buffer("power_vector", empty(1, self.in_channels, *self.input_size))

    def reset_parameters(self) -> None:
        """Orthogonal kernel, or near the identity with the residual re-parameterisation."""
        if self.residual is None:
            with torch.no_grad():  # the factorisation behind it does not exist in half precision
                self.weight.copy_(nn.init.orthogonal_(self.weight.float()))
        else:
            super().reset_parameters()
        nn.init.normal_(self.power_vector)

    def derive(self, key: torch.dtype) -> Tensor:
        """Return the kernel that is convolved with, computed in the precision `key`."""
        return self.V(key)

    def convolve(self, x: Tensor) -> Tensor:
        x = to_autocast(x)
        kernel, (h, w) = self.derived(x.dtype), self._output_size((x.shape[-2], x.shape[-1]))
        if x.is_cuda and kernel[0].numel() <= _FEW_TAPS:
            return convolve_patches(x, kernel, stride=self.stride, padding=self.padding)[..., :h, :w]
        x = x.contiguous(memory_format=torch.channels_last)  # in which a CPU convolves, and the next layer, too
        return F.conv2d(x, kernel, stride=self.stride, padding=self.padding)[..., :h, :w]

    def _checked_padding(self, padding: int | None) -> int:
        self.keeps_size = padding is None
        return super()._checked_padding(padding)

    def _output_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the size of the output: without a chosen padding an even kernel's last row and column are cut off."""
        spare = self.kernel_size - 2 * self.padding
        h, w = (-(-n // self.stride) if self.keeps_size else (n - spare) // self.stride + 1 for n in size)
        return h, w

    @torch.no_grad()
    def update_estimate(self, steps: int) -> None:
        """Take power-iteration steps on J'J, warm-started from the stored vector."""
        v = self.power_vector
        kernel = unit_scaled(self.derive(v.dtype))  # the direction is the same, and squares cannot underflow

        def gram(v: Tensor) -> Tensor:
            w = F.conv2d(v, kernel, stride=self.stride, padding=self.padding)
            return conv2d_input(v.shape, kernel, w, stride=self.stride, padding=self.padding)

        v.copy_(power_iteration(gram, v, steps))

    def lipschitz_estimate(self) -> Tensor:
        """Return |J v| / |v| for the stored vector: a lower bound, differentiable in the kernel."""
        v = self.power_vector
        image = F.conv2d(v, self.derive(v.dtype), stride=self.stride, padding=self.padding)
        return image.norm() / v.norm()

    def proved_convolve(self, size: tuple[int, int]) -> ProvedMap:
        kernel = self.derive(torch.float64).clone()  # a float64 model must not share its numbers with a proof
        stride, padding, k = self.stride, self.padding, self.kernel_size
        norm = convolution_norm(kernel, size, stride=stride, padding=padding)
        products = [Product(norm, absolute_convolution_norm(kernel), self.in_channels * k * k)]
        (h, w), whole = self._output_size(size), tuple((side + 2 * padding - k) // stride + 1 for side in size)
        flat = kernel.flatten(1)

        def apply(x: Tensor) -> Tensor:
            # Through a matrix product, whose rounding is known; a library's convolution may use transforms.
            patches = F.unfold(x, k, padding=padding, stride=stride)
            return (flat @ patches).unflatten(-1, whole)[..., :h, :w]

        proved = linear_map(apply, (self.out_channels, h, w), products, norm)
        return replace(proved, remark=self._looseness(norm, size))

    def _looseness(self, norm: float, size: tuple[int, int]) -> str:
        """Say how far the bound can lie above the norm, where it is not the norm itself; the estimate lies below it."""
        if size != self.input_size or self.in_channels * size[0] * size[1] <= EXPLICIT_INPUTS:
            return ""
        estimate = float(self.lipschitz_estimate())
        return f"circulant bound, at most {norm / estimate - 1:.1%} above the norm" if estimate > 0 else ""
