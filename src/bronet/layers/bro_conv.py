"""The BRO convolution (Proposition 2, Algorithm 1, App. A.3 and A.4) as a layer.

Orthogonal on the padded grid for every parameter; a contraction where padding is cropped, channels are reduced or
the ridge is felt. Runs in the real low-rank form: no complex number, no c x c matrix, any image size.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.layers.base import require_channels, require_counts, require_shape, without_autocast
from bronet.layers.execution import Inversion, ReflectorLayer
from bronet.layers.residual_kernel import IdentityResidual
from bronet.layers.shape import PixelUnshuffle, unshuffle
from bronet.ortho.bro_convolution import (
    Geometry,
    Windows,
    apply_factor,
    embed_image,
    geometry_of,
    images_of,
    pixels_of,
    reflect_images,
    reflector_factor,
    reflector_inverses,
)
from bronet.ortho.spd import BRO_RIDGE, unit_scaled
from bronet.ortho.spectrum import rows_of_channels, spectrum_blocks
from bronet.proof.proved_map import Product, ProvedMap, gain_of_products, norm_of_products
from bronet.proof.reflector import (
    FourierFrame,
    a_priori_reflector_norm,
    factor_norm,
    orthonormal_factor,
    reflector_norm,
)
from bronet.proof.rounding import UNDERFLOW, gamma, up
from bronet.proof.spectral import absolute_norm


@dataclass(frozen=True)
class _GridInversion(Inversion):
    geometry: Geometry

    def invert(self, kernels: Sequence[Tensor]) -> list[Tensor]:
        return reflector_inverses(kernels, self.geometry, dtype=self.dtype)


class _Key(NamedTuple):
    geometry: Geometry
    precision: torch.dtype
    dtype: torch.dtype


class BROConv2d(ReflectorLayer[Tensor]):
    """An orthogonal convolution x -> (I - 2 V (V*V)^-1 V*) x, for images of any size.

    Args:
        in_channels, out_channels: where they differ, the layer is semi-orthogonal.
        kernel_size: taps of V per axis; the convolution itself reaches over the whole padded grid.
        rank: n, the number of reflected directions per frequency; default half the channels, or
            min(c_in, c_out) for a semi-orthogonal layer. 1 <= n < m = max(c_in, c_out), as n = m is -I.
        stride: turned into channels by a pixel unshuffle before the convolution.
        padding: k' zeros on each side (default kernel_size // 2); 0 makes the convolution circular.
        keep_padding: return the padded grid instead of cropping it.
        residual_depth: L of the re-parameterisation V = I + alpha / sqrt(L) V; none by default.
        ridge: relative ridge on V*V.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        *,
        rank: int | None = None,
        stride: int = 1,
        padding: int | None = None,
        keep_padding: bool = False,
        residual_depth: int | None = None,
        ridge: float = BRO_RIDGE,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_counts(in_channels=in_channels, out_channels=out_channels, kernel_size=kernel_size)
        self.unshuffle = PixelUnshuffle(stride)
        self.image_channels = in_channels
        self.in_channels, self.out_channels = in_channels * stride**2, out_channels
        m = max(self.in_channels, out_channels)
        n = rank if rank is not None else _default_rank(self.in_channels, out_channels)
        if not 1 <= n < m:
            raise BronetError(f"rank must satisfy 1 <= n < m = {m}, got n = {n}")
        self.kernel_size, self.rank, self.ridge = kernel_size, n, ridge
        self.padding = kernel_size // 2 if padding is None else padding
        if self.padding < 0:
            raise BronetError(f"padding must be at least 0, got {padding}")
        self.keep_padding = keep_padding
        self.weight = nn.Parameter(torch.empty(m, n, kernel_size, kernel_size, device=device, dtype=dtype))
        self.residual = (
            None if residual_depth is None else IdentityResidual(m, residual_depth, device=device, dtype=dtype)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start at the identity kernel, or near it with the residual re-parameterisation."""
        if self.residual is None:
            nn.init.dirac_(self.weight)
        else:
            nn.init.normal_(self.weight, std=1 / (self.weight.shape[0] * self.kernel_size**2))
            self.residual.reset_parameters()

    def V(self, dtype: torch.dtype) -> Tensor:
        """Return the kernel that is reflected, computed in this precision."""
        weight = self.weight.to(dtype)
        return weight if self.residual is None else self.residual(weight)

    def derive(self, key: object) -> Tensor:
        assert isinstance(key, _Key)
        return reflector_factor(self.V(key.precision), key.geometry, dtype=key.dtype)

    def forward(self, x: Tensor) -> Tensor:
        require_channels(x, self.image_channels, "BROConv2d")
        x = self.unshuffle(x)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        precision = self.precision_for(x)
        with without_autocast(x.device.type):
            geometry = geometry_of(
                x, c_out=self.out_channels, padding=self.padding, keep_padding=self.keep_padding, ridge=self.ridge
            )
            if self.keeps_derived:
                Q = self.derived(_Key(geometry, precision, x.dtype))
                return images_of(apply_factor(pixels_of(x), Q, geometry), geometry)
            inverse = self.inverse_for(_GridInversion(self.weight.shape, precision, x.dtype, geometry))
            return reflect_images(x, self.V(precision), geometry, inverse=inverse)

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        require_shape(shape, self.image_channels, "BROConv2d", images=True)
        stride = self.unshuffle.factor
        size = (shape[1] // stride, shape[2] // stride)
        windows = Windows.of(size, self.padding, keep_padding=self.keep_padding)
        frame = FourierFrame.of(windows, self.weight.device)
        grid, dense = windows.source.grid, frame.dense
        geometry = Geometry(windows, self.out_channels, self.ridge, dense)
        V = unit_scaled(self.V(torch.float64).detach())
        A = spectrum_blocks(V, grid, dense=dense)
        # The direct Gram matrix: its error is relative to this frequency's A, however small that is.
        Q = orthonormal_factor(A, A.mT @ A, ridge=self.ridge)
        Q_norm = up(math.sqrt(factor_norm(Q)))
        Q_in, Q_out = rows_of_channels(Q, self.in_channels), rows_of_channels(Q, self.out_channels)
        reflect = Product(Q_norm, absolute_norm(Q), Q.shape[-2])
        back = Product(Q_norm, reflect.absolute_norm, Q.shape[-1])
        products = [*frame.analysis(), reflect, back, *frame.synthesis()]
        # x - 2 v: the products' error twice, then one rounding of numbers no larger than |x| + 2 |v|.
        error = 2 * gain_of_products(products)
        gain = up(error + gamma(1) * (1 + 2 * norm_of_products(products) + error))

        def apply(x: Tensor) -> Tensor:
            pixels = pixels_of(unshuffle(x, stride))
            v = frame.target.synthesis(Q_out @ (Q_in.mT @ frame.source.analysis(pixels)))
            return images_of(embed_image(pixels, geometry) - 2 * v, geometry)

        bound = reflector_norm(up(Q_norm**2 * frame.norm**2))
        return ProvedMap(apply, (self.out_channels, *windows.target.size), bound, gain, UNDERFLOW)

    def lipschitz_bound(self, input_size: tuple[int, int] | None = None) -> float:
        """Return an upper bound on the norm: the proved one for this size; without a size, a looser one for all."""
        if input_size is None:
            return a_priori_reflector_norm(self.weight.shape[0], self.rank, ridge=self.ridge)
        return self.proved((self.image_channels, *input_size)).lipschitz

    def extra_repr(self) -> str:
        return (
            f"{self.image_channels}, {self.out_channels}, kernel_size={self.kernel_size}, rank={self.rank}, "
            f"stride={self.unshuffle.factor}, padding={self.padding}, keep_padding={self.keep_padding}"
        )


def _default_rank(c_in: int, c_out: int) -> int:
    return max(1, c_in // 2) if c_in == c_out else min(c_in, c_out)
