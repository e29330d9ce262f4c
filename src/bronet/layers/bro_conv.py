"""The BRO convolution (Proposition 2, Algorithm 1, App. A.3 and A.4) as a layer, and its adjoint.

Orthogonal on the padded grid for every parameter; a contraction where padding is cropped, channels are reduced or
the ridge is felt. All this up to rounding: whatever the parameters, the norm of what runs is at most 1 + 1e-6 in
float64 and 1.05 in float32; in half precision it grows with the square of their condition (docs/soundness.md). Runs in
the real low-rank form: no complex number, no c x c matrix, any image size.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from bronet.layers.base import reflected_rank, require_ridge, to_autocast, without_autocast
from bronet.layers.convolution import Convolution, Options
from bronet.layers.execution import Derivation
from bronet.ortho.bro_convolution import (
    Geometry,
    Windows,
    embed_image,
    images_of,
    pixels_of,
    reflect_images,
    reflector_inverses,
)
from bronet.ortho.bro_evaluation import ByFactor, Form, Weights, evaluation_form
from bronet.ortho.bro_training import training_form
from bronet.ortho.real_dft import is_dense
from bronet.ortho.spd import BRO_RIDGE, unit_scaled
from bronet.ortho.spectrum import rows_of_channels, spectrum_blocks
from bronet.proof.proved_map import Product, ProvedMap, gamma, norm_of_products, rounding_of_products, up
from bronet.proof.reflector import FourierFrame, factor_norm, orthonormal_factor, reflector_norm
from bronet.proof.spectral import absolute_norm


@dataclass(frozen=True)
class _Inverses(Derivation):
    """(V*V)^-1 at every frequency, rounded to `dtype`."""

    dtype: torch.dtype
    geometry: Geometry

    def of(self, kernels: Sequence[Tensor]) -> list[Tensor]:
        return reflector_inverses(kernels, self.geometry, dtype=self.dtype)


@dataclass(frozen=True)
class _Key:
    """The form of evaluation, the precision of its factorisations and that of its products."""

    form: Form
    precision: torch.dtype
    dtype: torch.dtype


class BROConv2d(Convolution[_Key, Weights]):
    """An orthogonal convolution x -> (I - 2 V (V*V)^-1 V*) x; arguments as in `Convolution`.

    Where in_channels * stride^2 and out_channels differ, the layer is semi-orthogonal. V has `kernel_size` taps per
    axis; the convolution itself reaches over the whole padded grid. Circular convolutions with equal channels are
    orthogonal. `padding` may be any number of at least one.
    """

    options: ClassVar[frozenset[str]] = frozenset({"rank", "keep_padding", "residual_depth", "ridge"})
    least_padding: ClassVar[int | None] = 1

    def make_parameters(self, empty: Callable[..., Tensor], options: Options) -> None:
        self.rank = reflected_rank(options.rank, self.inner_channels, self.out_channels)
        self.keep_padding = options.keep_padding
        self.ridge = BRO_RIDGE if options.ridge is None else options.ridge
        require_ridge(self.ridge)
        m, k = max(self.inner_channels, self.out_channels), self.kernel_size
        self.own_kernel(empty(m, self.rank, k, k), options.residual_depth)

    def derive(self, key: _Key) -> Weights:
        weights = key.form.derive(self.V(key.precision), self.inner_channels)
        return tuple(part if part.is_complex() else part.to(key.dtype) for part in weights)

    def convolve(self, x: Tensor) -> Tensor:
        x = to_autocast(x)
        with without_autocast(x.device.type):
            size = (int(x.shape[-2]), int(x.shape[-1]))  # of numbers where torch.jit.trace has symbols
            windows = Windows.of(size, self.padding, keep_padding=self.keep_padding)
            geometry = Geometry(windows, self.out_channels, self.ridge, is_dense(windows.source.grid, x.device))
            precision = self.precision_for(x)
            if self.keeps_derived:
                form = ByFactor(geometry) if self.portable else evaluation_form(x, self.weight, geometry)
                return form.apply(x, self.derived(_Key(form, precision, x.dtype)))
            V, trained = self.V(precision), training_form(x, self.weight, geometry)
            if trained is not None:
                return trained(x, V)
            inverses = _Inverses(self.weight.shape, precision, x.dtype, geometry)
            return reflect_images(x, V, geometry, inverse=self.result_ahead(inverses))

    def proved_convolve(self, size: tuple[int, int]) -> ProvedMap:
        windows = Windows.of(size, self.padding, keep_padding=self.keep_padding)
        frame = FourierFrame.of(windows, self.weight.device)
        geometry = Geometry(windows, self.out_channels, self.ridge, frame.dense)
        A = spectrum_blocks(unit_scaled(self.V(torch.float64)), windows.source.grid, dense=frame.dense)
        # The direct Gram matrix: its error is relative to this frequency's A, however small that is.
        Q = orthonormal_factor(A, A.mT @ A, ridge=self.ridge)
        Q_norm = up(math.sqrt(factor_norm(Q)))
        Q_in, Q_out = rows_of_channels(Q, self.inner_channels), rows_of_channels(Q, self.out_channels)
        reflect = Product(Q_norm, absolute_norm(Q), Q.shape[-2])
        back = Product(Q_norm, reflect.absolute_norm, Q.shape[-1])
        products = [*frame.analysis(), reflect, back, *frame.synthesis()]
        # x - 2 v: the products' error twice, then one rounding of numbers no larger than |x| + 2 |v|.
        error, lost = (2 * bound for bound in rounding_of_products(products))
        gain = up(error + gamma(1) * (1 + 2 * norm_of_products(products) + error))

        def apply(x: Tensor) -> Tensor:
            pixels = pixels_of(x)
            v = frame.filtered(pixels, lambda part, u: Q_out[part] @ (Q_in[part].mT @ u))
            return images_of(torch.add(embed_image(pixels, geometry), v, alpha=-2), windows.target)

        bound = reflector_norm(up(Q_norm**2 * frame.norm**2))
        return ProvedMap(apply, (self.out_channels, *windows.target.size), bound, gain, up(2 * lost))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={self.rank}, keep_padding={self.keep_padding}"


class BROConvTranspose2d(BROConv2d):
    """The adjoint of a strided BRO convolution: images that are `stride` times as large, with fewer channels.

    A reflector is its own adjoint, so the adjoint of pixel unshuffle, reflector and a cut of channels is an embedding
    of channels, the reflector and a pixel shuffle. `out_channels` are those behind the shuffle; the other arguments are
    those of `BROConv2d` and act before it.
    """

    @property
    def factor(self) -> int:
        return 1  # the stride is that of the pixel shuffle behind the reflector

    def make_parameters(self, empty: Callable[..., Tensor], options: Options) -> None:
        self.out_channels *= self.stride**2  # before the shuffle
        super().make_parameters(empty, options)

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if self.parts is not None else nn.functional.pixel_shuffle(y, self.stride)

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        inner, factor = super().proved(shape), self.stride
        if self.parts is not None:
            return inner
        apply, (c, h, w) = inner.apply, inner.output_shape
        shuffled = lambda x: nn.functional.pixel_shuffle(apply(x), factor)  # noqa: E731
        return replace(inner, apply=shuffled, output_shape=(c // factor**2, h * factor, w * factor))
