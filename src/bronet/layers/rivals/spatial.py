"""Convolutions with an explicit kernel that keep the image's size: AOL, BCOP, and a plain one for comparing cost.

AOL, the almost-orthogonal layer (Prach and Lampert 2022), rescales its kernel by absolute sums of its autocorrelation.
Its norm is at most one for every parameter and every image size, by the layer's own theorem, with rounding counted.
Nothing keeps the small singular values from zero: it becomes almost orthogonal only if training makes it so.

BCOP (Li et al. 2019) makes an orthogonal kernel by block convolution of projections. It is orthogonal with circular
edges where Bjorck's iteration has converged, whose residual only shrinks singular values, and a contraction with zeros.

Proofs are of the kernel that came out, and go through patches and matrix products.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bronet.layers.base import like_input
from bronet.layers.convolution import Convolution, Options
from bronet.ortho.orthogonal_maps import BJORCK_STEPS, bcop_kernel
from bronet.ortho.rescaling import Rescaled, rescaled
from bronet.proof.proved_map import Product, ProvedMap, linear
from bronet.proof.spectral import (
    absolute_convolution_norm,
    kept_size_norm,
    pad_edges,
    patch_convolution,
    weighted_sum_norm,
)


class SpatialConv2d(Convolution[torch.dtype, Tensor]):
    """A convolution with the kernel (c_out, c_in, k, k) that `derive` makes in a given precision, k odd.

    Its parameter has the shape of the kernel, unless `make_parameters` says otherwise. Arguments as in `Convolution`.
    """

    needs_odd_kernel: ClassVar[bool] = True

    def make_parameters(self, empty: Callable[..., Tensor], _options: Options) -> None:
        k = self.kernel_size
        self.weight = nn.Parameter(empty(self.out_channels, self.inner_channels, k, k))

    def kernel_norm(self, kernel: Tensor, size: tuple[int, int]) -> float:
        """Return a proved upper bound on the norm of the convolution with this kernel on images of this size."""
        return kept_size_norm(kernel, size, circular=self.circular)

    def convolve(self, x: Tensor) -> Tensor:
        kernel = like_input(self.derived(self.precision_for(x)), x)
        return convolve_kept_size(x, kernel, circular=self.circular)

    def proved_convolve(self, size: tuple[int, int]) -> ProvedMap:
        kernel = self.derive(torch.float64).clone()  # a float64 parameter may be the kernel itself
        norm, circular = self.kernel_norm(kernel, size), self.circular
        products = [Product(norm, absolute_convolution_norm(kernel), kernel[0].numel())]
        apply = lambda x: patch_convolution(x, kernel, circular=circular)  # noqa: E731
        return linear(apply, (self.out_channels, *size), products, norm)


class AOLConv2d(SpatialConv2d):
    """x -> K T^-1/2 x, T_i the absolute sum of row i of the kernel's autocorrelation; arguments as in `Convolution`."""

    def reset_parameters(self) -> None:
        """Start at the identity kernel, where the rescaling does nothing."""
        nn.init.dirac_(self.weight)

    def derive(self, key: torch.dtype) -> Tensor:
        return self._rescaled(key).kernel

    def _rescaled(self, dtype: torch.dtype) -> Rescaled:
        weight = self.weight.to(dtype)
        return rescaled(weight, weight.new_ones(self.inner_channels))

    def kernel_norm(self, kernel: Tensor, size: tuple[int, int]) -> float:
        return weighted_sum_norm(kernel, self._rescaled(torch.float64).weights)

    @torch.no_grad()
    def bound_for_every_size(self) -> float:
        return weighted_sum_norm(*self._rescaled(torch.float64))


class StandardConv2d(SpatialConv2d):
    """x -> K x; arguments as in `Convolution`. Nothing constrains its norm, which is bounded as stored.

    Training may let that bound grow without limit: the layer is there for comparing cost.
    """

    def reset_parameters(self) -> None:
        """Start from normals that keep the variance (Kaiming, linear)."""
        nn.init.kaiming_normal_(self.weight, nonlinearity="linear")

    def derive(self, key: torch.dtype) -> Tensor:
        return self.weight.to(key)


class BCOPConv2d(SpatialConv2d):
    """A (semi-)orthogonal core matrix and 2 (k - 1) projections of half rank; arguments as in `Convolution`.

    The projections act on the smaller side. Bjorck's iteration takes `steps`, those of the published layer.
    """

    steps: int = BJORCK_STEPS

    def make_parameters(self, empty: Callable[..., Tensor], _options: Options) -> None:
        c, k = min(self.inner_channels, self.out_channels), self.kernel_size
        self.core = nn.Parameter(empty(self.out_channels, self.inner_channels))
        # A 1 x 1 kernel is the core alone. An empty parameter would never get a gradient.
        self.halves = nn.Parameter(empty(2 * (k - 1), c, max(1, c // 2))) if k > 1 else None

    def reset_parameters(self) -> None:
        """Start from random orthogonal matrices, where Bjorck's iteration has nothing to do."""
        if self.core.device.type == "meta":
            return
        with torch.no_grad():  # the factorisation behind it does not exist in half precision
            self.core.copy_(nn.init.orthogonal_(self.core.float()))
            for half in self.halves if self.halves is not None else ():
                half.copy_(nn.init.orthogonal_(half.float()))

    def derive(self, key: torch.dtype) -> Tensor:
        halves = self.halves.to(key) if self.halves is not None else None
        return bcop_kernel(self.core.to(key), halves, steps=self.steps)


def convolve_kept_size(x: Tensor, kernel: Tensor, *, circular: bool) -> Tensor:
    """Return the library's convolution with edges such that the image keeps its size; odd kernels."""
    margin = kernel.shape[-1] // 2
    if circular:
        return F.conv2d(pad_edges(x, margin, circular=True), kernel)
    return F.conv2d(x, kernel, padding=margin)
