"""The layers of LipNeXt (arXiv 2601.18513, without published code): orthogonal matrices as parameters, and shifts.

A matrix is not derived from a free parameter here: it is the parameter, and the optimiser keeps it orthogonal
(`bronet.training.manifold`). A proof bounds the norm of the matrix as stored, whatever the optimiser did. A circular
convolution of one channel is an isometry only if its kernel has a single entry, 1 or -1: a shift.
"""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.layers.base import (
    Device,
    LipschitzLayer,
    OneLipschitz,
    batch_first,
    batch_last,
    like_input,
    require_channels,
    require_counts,
    require_shape,
)
from bronet.proof.proved_map import Product, ProvedMap, exact, linear, norm_of_products, shift
from bronet.proof.spectral import absolute_norm, largest_singular_value

_DIRECTIONS = 4


def shift_channels(x: Tensor, moved: int) -> Tensor:
    """Move four groups of so many channels by one pixel, circularly: down, up, right and left; the rest stays."""
    x = batch_last(x)  # h w c b: the memory order of the matrix products on both sides
    *groups, rest = x.split((*(moved,) * _DIRECTIONS, x.shape[-2] - _DIRECTIONS * moved), dim=-2)
    steps = ((1, 0), (-1, 0), (1, 1), (-1, 1))
    shifted = [group.roll(step, axis) for group, (step, axis) in zip(groups, steps, strict=True)]
    return batch_first(torch.cat((*shifted, rest), dim=-2))


def half_absolute(x: Tensor) -> Tensor:
    """Return |x| for the first half of the channels, and the second half as it is."""
    first, second = batch_last(x).tensor_split(2, dim=-2)
    return batch_first(torch.cat((first.abs(), second), dim=-2))


class Shift(OneLipschitz):
    """Four groups of `moved` channels each move by one pixel, in four directions; a permutation, so an isometry."""

    def __init__(self, channels: int, moved: int) -> None:
        super().__init__()
        require_counts(channels=channels, moved=moved)
        if _DIRECTIONS * moved > channels:
            raise BronetError(f"moved must be at most a quarter of the {channels} channels, got {moved}")
        self.channels, self.moved = channels, moved

    def forward(self, x: Tensor) -> Tensor:
        require_channels(x, self.channels, "Shift")
        return shift_channels(x, self.moved)

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        require_shape(shape, self.channels, "Shift", images=True)
        moved = self.moved
        return exact(lambda x: shift_channels(x, moved), shape)

    def extra_repr(self) -> str:
        return f"{self.channels}, moved={self.moved}"


class HalfAbs(OneLipschitz):
    """beta-Abs at beta = 1/2: |x| for the first half of the channels; MaxMin up to a rotation of pairs. Exact."""

    def forward(self, x: Tensor) -> Tensor:
        return half_absolute(x)

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        return exact(half_absolute, shape)


class Position(OneLipschitz):
    """x + p with a learned number for each pixel, the same for all channels."""

    def __init__(self, size: tuple[int, int], *, device: Device = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(size, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.position.to(x.dtype)

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        if shape[1:] != self.position.shape:
            raise BronetError(f"Position expects images of {tuple(self.position.shape)} pixels, got shape {shape}")
        p = self.position.detach().double().clone()
        return shift(p, shape)


class Rotation(LipschitzLayer):
    """A layer whose parameter `weight` is an orthogonal c x c matrix, which starts at random.

    Not guaranteed by the layer: that the matrix stays orthogonal. The proof is of the matrix as stored.
    """

    recordable: ClassVar[bool] = False  # its optimiser asks the host how long a step is

    def __init__(self, channels: int, *, device: Device = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        require_counts(channels=channels)
        self.channels = channels
        self.weight = nn.Parameter(torch.empty(channels, channels, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():  # the factorisation behind it does not exist in half precision
            self.weight.copy_(nn.init.orthogonal_(self.weight.float()))

    def forward(self, x: Tensor) -> Tensor:
        require_channels(x, self.channels, type(self).__name__)
        return self.rotated(like_input(self.weight, x), x)

    @abstractmethod
    def rotated(self, W: Tensor, x: Tensor) -> Tensor:
        """Return the output for the matrix in the precision of x."""

    def lipschitz_bound(self, input_size: tuple[int, int] | None = None) -> float:
        return self.proved((self.channels, *(input_size or (1, 1)))).lipschitz

    def extra_repr(self) -> str:
        return str(self.channels)


def rotate(W: Tensor, x: Tensor) -> Tensor:
    """Return W x for every pixel."""
    return batch_first(W @ batch_last(x))


def rotate_shifted(R: Tensor, x: Tensor, moved: int) -> Tensor:
    """Return R' S R x: channels move between pixels in a basis of its own."""
    return rotate(R.mT, shift_channels(rotate(R, x), moved))


class OrthogonalMix(Rotation):
    """x -> M x at every pixel."""

    def rotated(self, W: Tensor, x: Tensor) -> Tensor:
        return rotate(W, x)

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        require_shape(shape, self.channels, "OrthogonalMix")
        W = self.weight.detach().double().clone()
        product = Product(largest_singular_value(W), absolute_norm(W), self.channels)
        return linear(lambda x: rotate(W, x), shape, [product], product.norm)


class ShiftedMix(Rotation):
    """x -> R' S R x, S the shift of `Shift`."""

    def __init__(self, channels: int, moved: int, *, device: Device = None, dtype: torch.dtype | None = None) -> None:
        super().__init__(channels, device=device, dtype=dtype)
        self.moved = Shift(channels, moved).moved

    def rotated(self, W: Tensor, x: Tensor) -> Tensor:
        return rotate_shifted(W, x, self.moved)

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        require_shape(shape, self.channels, "ShiftedMix", images=True)
        R, moved = self.weight.detach().double().clone(), self.moved
        products = [Product(largest_singular_value(R), absolute_norm(R), self.channels)] * 2
        return linear(lambda x: rotate_shifted(R, x, moved), shape, products, norm_of_products(products))
