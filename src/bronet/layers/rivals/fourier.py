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

from bronet.errors import BronetError
from bronet.layers.base import like_input
from bronet.layers.convolution import Convolution, PaddingMode
from bronet.layers.residual_kernel import residual_of, start_near_identity, with_residual
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


class FourierConv2d(Convolution[Tensor]):
    """A convolution given by a matrix for each frequency; arguments as in `Convolution`, and `residual_depth`.

    Where the channels differ (after the stride), the layer is semi-orthogonal. The parameter has `kernel_size` taps per
    axis; the convolution itself reaches over the whole padded grid.

    Args:
        padding: zeros on each side, any number of at least one, which are cropped again afterwards.
        residual_depth: L of the parameter I + alpha / sqrt(L) V; none by default.
    """

    options: ClassVar[frozenset[str]] = frozenset({"residual_depth"})
    least_padding: ClassVar[int | None] = 1

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        *,
        stride: int = 1,
        padding: int | None = None,
        padding_mode: PaddingMode = "zeros",
        residual_depth: int | None = None,
        input_size: tuple[int, int] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            padding=padding,
            padding_mode=padding_mode,
            input_size=input_size,
        )
        if residual_depth is not None and "residual_depth" not in self.options:
            raise BronetError(f"residual_depth must be left out for a {type(self).__name__}, got {residual_depth!r}")
        shape = (out_channels, self.inner_channels, kernel_size, kernel_size)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.residual = residual_of(out_channels, residual_depth, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start at the identity kernel, or near it with the residual re-parameterisation."""
        start_near_identity(self.weight, self.residual)

    @abstractmethod
    def orthogonalize(self, V: Tensor) -> Tensor:
        """Return the matrices W of the parameter's complex matrices V, (f, c_out, c_in)."""

    def spectrum(self, grid: tuple[int, int], *, dense: bool, dtype: torch.dtype) -> Tensor:
        """Return the parameter's matrix at every frequency, computed in this precision."""
        return centred_spectrum(with_residual(self.weight.to(dtype), self.residual), grid, dense=dense)

    def derive(self, key: object) -> Tensor:
        assert isinstance(key, GridKey)
        return real_blocks(self.orthogonalize(self.spectrum(key.grid, dense=key.dense, dtype=key.dtype)))

    def convolve(self, x: Tensor) -> Tensor:
        windows = self.windows((x.shape[-2], x.shape[-1]))
        dense = is_dense(windows.source.grid, x.device)
        W = like_input(self.derived(GridKey(windows.source.grid, dense, self.precision_for(x))), x)
        basis = real_dft(windows.source, dense=dense, dtype=W.dtype, device=x.device)
        return apply_spectrum(x, W, basis)

    def windows(self, size: tuple[int, int]) -> Windows:
        """Return where an image of this size lies on the padded grid."""
        return Windows.of(size, self.padding, keep_padding=False)

    def proved_convolve(self, size: tuple[int, int]) -> ProvedMap:
        windows = self.windows(size)
        frame = FourierFrame.of(windows, self.weight.device)
        W = self.derive(GridKey(windows.source.grid, frame.dense, torch.float64))
        remark, norm = self.remark(W), largest_singular_value(W)
        products = [*frame.analysis(), Product(norm, absolute_norm(W), W.shape[-1]), *frame.synthesis()]
        apply = lambda x: apply_spectrum(x, W, frame.source)  # noqa: E731
        proved = linear(apply, (self.out_channels, *size), products, up(norm * frame.norm**2))
        return replace(proved, remark=remark)

    def remark(self, W: Tensor) -> str:
        """Return what a reader of a certificate should know of the matrices W; nothing by default."""
        return ""


class CayleyConv2d(FourierConv2d):
    """x -> (I - A)(I + A)^-1 x with A = V - V* (Trockman and Kolter 2021); arguments as in `Convolution`.

    Orthogonal for every parameter, up to rounding. Where channels differ, the tall form of the transform is used, with
    a solve of the smaller size. There is no residual re-parameterisation: its identity would cancel in V - V*, and
    V = 0 is the identity already.
    """

    options: ClassVar[frozenset[str]] = frozenset()
    recordable: ClassVar[bool] = False

    def reset_parameters(self) -> None:
        """Start like a plain convolution (uniform, variance 1 / (3 c_in k^2)), as the published layer does."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def orthogonalize(self, V: Tensor) -> Tensor:
        return cayley(V)


class CholeskyConv2d(FourierConv2d):
    """x -> L^-1 V x at every frequency, L L* = V V* + ridge (Hu et al. 2024, per frequency as in Table 3).

    Singular values s / sqrt(s^2 + e): at most one for every parameter, and close to one where V is well conditioned.
    The ridge is that of the dense layer. Arguments as in `FourierConv2d`.
    """

    recordable: ClassVar[bool] = False

    def orthogonalize(self, V: Tensor) -> Tensor:
        return cholesky_orthogonal(V, ridge=CHOLESKY_RIDGE)


def apply_spectrum(x: Tensor, W: Tensor, basis: RealDFT) -> Tensor:
    """Return D' W D x for (b, c, h, w) images; the memory order of the result is (h, w, c, b)."""
    b, c, h, w = x.shape
    pixels = x.permute(2, 3, 1, 0).reshape(h * w, c, b)
    y = basis.synthesis(W @ basis.analysis(pixels))
    return y.view(h, w, W.shape[-2] // 2, b).permute(3, 2, 0, 1)
