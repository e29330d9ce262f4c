"""The Sandwich layer (Wang and Manchester 2023): sqrt(2) A* Psi relu(sqrt(2) Psi^-1 B x + b) with A A* + B B* = I.

A and B come from one tall Cayley transform at every frequency. As relu is positively homogeneous, Psi only scales the
bias. Jacobian 2 A* D B with D diagonal in [0, 1]; with S = B* D B and A A* <= t I - B B* its square is at most
4 (t S - S^2) <= t^2, so the norm is at most t, the squared norm of (A, B) as stored.
"""

import math
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bronet.layers.base import like_input
from bronet.layers.convolution import Convolution, PaddingMode
from bronet.layers.rivals.fourier import GridKey, apply_spectrum
from bronet.ortho.bro_convolution import Windows
from bronet.ortho.cayley import cayley
from bronet.ortho.real_dft import is_dense, real_dft
from bronet.ortho.spectrum import centred_spectrum, real_blocks
from bronet.proof.proved_map import Product, ProvedMap, gain_of_products, norm_of_products
from bronet.proof.reflector import FourierFrame
from bronet.proof.rounding import UNDERFLOW, gamma, up
from bronet.proof.spectral import absolute_norm, largest_singular_value


class Halves(NamedTuple):
    """sqrt(2) B, from input to hidden channels, and sqrt(2) A*, from hidden to output channels, as real blocks."""

    into: Tensor
    out: Tensor


class SandwichConv2d(Convolution[Halves]):
    """A nonlinear 1-Lipschitz convolution for images of any size; its hidden layer has c_out channels.

    Args: as in `Convolution`.
        padding: zeros on each side, any number of at least one, which are cropped again afterwards.
    """

    least_padding: ClassVar[int | None] = 1
    recordable: ClassVar[bool] = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        *,
        stride: int = 1,
        padding: int | None = None,
        padding_mode: PaddingMode = "zeros",
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
        shape = (out_channels + self.inner_channels, out_channels, kernel_size, kernel_size)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype))
        self.log_psi = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start from normals that keep the variance, as the published layer does."""
        nn.init.xavier_normal_(self.weight)
        nn.init.zeros_(self.bias)
        nn.init.zeros_(self.log_psi)

    def derive(self, key: object) -> Halves:
        assert isinstance(key, GridKey)
        W = math.sqrt(2) * cayley(centred_spectrum(self.weight.to(key.dtype), key.grid, dense=key.dense))
        return Halves(real_blocks(W[:, self.out_channels :].mH), real_blocks(W[:, : self.out_channels]))

    def _shift(self, dtype: torch.dtype) -> Tensor:
        return (self.log_psi.to(dtype).exp() * self.bias.to(dtype))[:, None, None]

    def convolve(self, x: Tensor) -> Tensor:
        window = Windows.of((x.shape[-2], x.shape[-1]), self.padding, keep_padding=False).source
        dense = is_dense(window.grid, x.device)
        derived = self.derived(GridKey(window.grid, dense, self.precision_for(x)))
        into, out = (like_input(half, x) for half in derived)
        basis = real_dft(window, dense=dense, dtype=into.dtype, device=x.device)
        hidden = F.relu(apply_spectrum(x, into, basis) + self._shift(x.dtype))
        return apply_spectrum(hidden, out, basis)

    def proved_convolve(self, size: tuple[int, int]) -> ProvedMap:
        windows = Windows.of(size, self.padding, keep_padding=False)
        frame = FourierFrame.of(windows, self.weight.device)
        into, out = self.derive(GridKey(windows.source.grid, frame.dense, torch.float64))
        shift = self._shift(torch.float64)
        both = largest_singular_value(torch.cat((into.mT, out), dim=-2))
        lipschitz = up(both**2 / 2 * frame.norm**4)

        def apply(x: Tensor) -> Tensor:
            hidden = F.relu(apply_spectrum(x, into, frame.source) + shift)
            return apply_spectrum(hidden, out, frame.source)

        first = [*frame.analysis(), Product(both, absolute_norm(into), into.shape[-1]), *frame.synthesis()]
        second = [*frame.analysis(), Product(both, absolute_norm(out), out.shape[-1]), *frame.synthesis()]
        size_of_shift = up(float(shift.norm()) * (size[0] * size[1]) ** 0.5)
        gain, offset = _rounding(first, second, size_of_shift)
        return ProvedMap(apply, (self.out_channels, *size), lipschitz, gain, offset)


def _rounding(first: list[Product], second: list[Product], shift: float) -> tuple[float, float]:
    """Return gain and offset of the two chains of products with a shift of this norm and a relu between them."""
    size, error = norm_of_products(first), gain_of_products(first)
    hidden = error + gamma(1) * (size + error)
    hidden_offset = gamma(1) * shift
    back_size, back = norm_of_products(second), gain_of_products(second)
    gain = back_size * hidden + back * (size + hidden)
    offset = back_size * hidden_offset + back * (shift + hidden_offset)
    return up(gain), up(offset + UNDERFLOW)
