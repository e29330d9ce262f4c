"""Convolutions with an explicit kernel that keep the image's size: AOL, BCOP, SOC, and a plain one for comparing cost.

AOL, the almost-orthogonal layer (Prach and Lampert 2022), rescales its kernel by absolute sums of its autocorrelation.
Its norm is at most one for every parameter and every image size, by the layer's own theorem, with rounding counted.
Nothing keeps the small singular values from zero: it becomes almost orthogonal only if training makes it so.

BCOP (Li et al. 2019) makes an orthogonal kernel by block convolution of projections. It is orthogonal with circular
edges where Bjorck's iteration has converged, whose residual only shrinks singular values, and a contraction with zeros.

SOC, the skew-orthogonal convolution (Singla and Feizi 2021), is the exponential of a skew-symmetric convolution. The
exponential is orthogonal; the layer adds up a few terms of its series (6 in training, as published; in evaluation as
many as leave out next to nothing) and is 1-Lipschitz only up to the truncation error, which the bound carries.

Proofs are of the kernel that came out, and go through patches and matrix products.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.layers.base import like_input
from bronet.layers.convolution import Convolution, Options
from bronet.ortho.orthogonal_maps import BJORCK_STEPS, bcop_kernel
from bronet.ortho.reflector import embed_channels
from bronet.ortho.rescaling import Rescaled, rescaled, reshapings, skew_kernel
from bronet.proof.proved_map import Product, ProvedMap, arithmetic, gamma, linear_map, up
from bronet.proof.spectral import (
    absolute_convolution_norm,
    kept_size_norm,
    largest_singular_value,
    pad_edges,
    patch_convolution,
    weighted_sum_norm,
)

TRAINING_TERMS = 6
NEGLIGIBLE = 1e-8
"""What evaluation may leave out of the series, as a share of the input: less than float32 rounds away."""

LARGEST_KERNEL = 501
"""Terms of the series grow up to e^k before they shrink, which must stay far below the largest float64."""


class SpatialConv2d(Convolution[torch.dtype, Tensor]):
    """A convolution with the kernel (c_out, c_in, k, k) that `derive` makes in a given precision, k odd.

    Arguments as in `Convolution`.
    """

    needs_odd_kernel: ClassVar[bool] = True

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
        return linear_map(apply, (self.out_channels, *size), products, norm)


class AOLConv2d(SpatialConv2d):
    """x -> K T^-1/2 x, T_i the absolute sum of row i of the kernel's autocorrelation; arguments as in `Convolution`."""

    def derive(self, key: torch.dtype) -> Tensor:
        return self._rescaled(key).kernel

    def _rescaled(self, dtype: torch.dtype) -> Rescaled:
        weight = self.weight.to(dtype)
        return rescaled(weight, weight.new_ones(self.inner_channels))

    def kernel_norm(self, kernel: Tensor, size: tuple[int, int]) -> float:
        return weighted_sum_norm(kernel, self._rescaled(torch.float64).weights)


class StandardConv2d(SpatialConv2d):
    """x -> K x; arguments as in `Convolution`. Nothing constrains its norm, which is bounded as stored.

    Training may let that bound grow without limit: the layer is there for comparing cost.
    """

    def reset_parameters(self) -> None:
        """Start from normals that keep the variance (Kaiming, linear)."""
        nn.init.kaiming_normal_(self.weight, nonlinearity="linear")

    def derive(self, key: torch.dtype) -> Tensor:
        return self.V(key)


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


class SOCConv2d(Convolution[torch.dtype, Tensor]):
    """x -> sum over j < terms of A^j x / j!, A skew-symmetric of norm at most k, at max(c_in, c_out) channels.

    Guaranteed: norm at most 1 + the truncated rest of the series, for every parameter and image size. The bound and the
    proved map are those of evaluation, where the rest is below 1e-8; in training, with three by three taps and 6 terms,
    it is below 1.78 times the input, and far below where A does not reach its bound.

    Arguments as in `Convolution`, kernel_size odd; missing channels are zeros, superfluous ones are dropped. Orthogonal
    (up to truncation) in both padding modes. `training_terms` and `evaluation_terms` count the identity: 6, and as many
    as leave out less than 1e-8, which are 20 for three by three taps.
    """

    needs_odd_kernel: ClassVar[bool] = True

    def make_parameters(self, empty: Callable[..., Tensor], _options: Options) -> None:
        c, k = max(self.inner_channels, self.out_channels), self.kernel_size
        if k > LARGEST_KERNEL:
            raise BronetError(f"kernel_size of SOCConv2d must be at most {LARGEST_KERNEL}, got {k}")
        self.training_terms, self.evaluation_terms = TRAINING_TERMS, negligible_from(k)
        self.own_kernel(empty(c, c, k, k))

    def reset_parameters(self) -> None:
        """Start from normals of variance 1 / c, as the published layer does.

        Only their direction counts, but the larger they are, the less a step of given size turns them.
        """
        nn.init.normal_(self.weight, std=1 / math.sqrt(self.weight.shape[0]))

    def derive(self, key: torch.dtype) -> Tensor:
        return skew_kernel(self.V(key))

    def convolve(self, x: Tensor) -> Tensor:
        kernel = like_input(self.derived(self.precision_for(x)), x)
        terms = self.training_terms if self.training else self.evaluation_terms
        convolve = partial(convolve_kept_size, kernel=kernel, circular=self.circular)
        return _series(embed_channels(x, self.weight.shape[0], dim=1), convolve, terms)[:, : self.out_channels]

    def proved_convolve(self, size: tuple[int, int]) -> ProvedMap:
        c, kernel = self.weight.shape[0], self.derive(torch.float64)
        s, terms, channels = skew_norm(kernel), self.evaluation_terms, self.out_channels
        convolve = partial(patch_convolution, kernel=kernel, circular=self.circular)
        gain, offset = _series_rounding(s, absolute_convolution_norm(kernel), c * self.kernel_size**2, terms)

        def apply(x: Tensor) -> Tensor:
            return _series(embed_channels(x, c, dim=1), convolve, terms)[:, :channels]

        return ProvedMap(apply, (self.out_channels, *size), up(1 + rest_of_series(s, terms)), gain, offset)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, terms=({self.training_terms}, {self.evaluation_terms})"


def _series(x: Tensor, convolve: Callable[[Tensor], Tensor], terms: int) -> Tensor:
    """Return the sum over j < terms of A^j x / j! for a convolution A."""
    term = total = x
    for j in range(1, terms):
        term = convolve(term) / j
        total = total + term
    return total


def skew_norm(kernel: Tensor) -> float:
    """Return the fantastic-four bound of a float64 kernel, proved: valid for every image size."""
    taps = math.sqrt(kernel.shape[-1] * kernel.shape[-2])
    return up(taps * min(largest_singular_value(R) for R in reshapings(kernel)))


def rest_of_series(s: float, terms: int) -> float:
    """Return an upper bound on the sum over j >= terms of s^j / j!; the geometric series needs s < terms + 1."""
    if s >= terms + 1:
        raise BronetError(f"SOC needs more terms than its norm {s:.3g} less one, got {terms}")
    first = 1.0
    for j in range(1, terms + 1):
        first *= s / j  # s^terms and terms! by themselves overflow
    return up(first * (terms + 1) / (terms + 1 - s) * (1 + gamma(2 * terms + 4)))


def negligible_from(s: float) -> int:
    """Return how many terms of the series leave out less than `NEGLIGIBLE` for a norm of s."""
    terms = max(2, math.ceil(s))
    while rest_of_series(s, terms) >= NEGLIGIBLE:
        terms += 1
    return terms


def _series_rounding(s: float, absolute: float, length: int, terms: int) -> tuple[float, float]:
    """Return g and o such that adding up the series errs by at most g |x| + o.

    Each term is a product and a division (two roundings where a device multiplies by 1 / j), then comes a sum.
    """
    size, error, lost = 1.0, 0.0, 0.0  # of the current term
    total, total_error, total_lost = 1.0, 0.0, 0.0
    rounding, underflow = gamma(length + 2) * absolute, arithmetic().underflow
    for j in range(1, terms):
        error = (s * error + rounding * (size + error)) / j
        lost = (s * lost + rounding * lost + underflow) / j + underflow
        size = size * s / j
        total += size
        total_error += error + gamma(1) * (total + total_error + error)
        total_lost += lost + gamma(1) * (total_lost + lost)
    return up(total_error), up(total_lost)
