"""The layers of LipNeXt (arXiv 2601.18513, without published code): orthogonal matrices as parameters, and shifts.

A matrix is not derived from a free parameter here: it is the parameter, and the optimiser keeps it orthogonal
(`bronet.training.manifold`). A proof bounds the norm of the matrix as stored, whatever the optimiser did. A circular
convolution of one channel is an isometry only if its kernel has a single entry, 1 or -1: a shift.
"""

from collections.abc import Callable
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.layers.base import (
    Device,
    Fixed,
    LipschitzLayer,
    OneLipschitz,
    batch_first,
    batch_last,
    like_input,
    require_counts,
)
from bronet.proof.proved_map import ProvedMap, linear_map, shift
from bronet.proof.spectral import product_with

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


def rotate(x: Tensor, W: Tensor, moved: int | None) -> Tensor:
    """Return W x for every pixel, or W' S W x: channels move between pixels in a basis of their own."""
    y = batch_first(W @ batch_last(x))
    return y if moved is None else batch_first(W.mT @ batch_last(shift_channels(y, moved)))


class Shift(Fixed):
    """Four groups of `moved` channels each move by one pixel, in four directions; a permutation, so an isometry."""

    takes_images_only = True

    def __init__(self, channels: int, moved: int) -> None:
        super().__init__()
        require_counts(channels=channels, moved=moved)
        if _DIRECTIONS * moved > channels:
            raise BronetError(f"moved must be at most a quarter of the {channels} channels, got {moved}")
        self.input_channels, self.moved = channels, moved

    def function(self) -> Callable[[Tensor], Tensor]:
        return partial(shift_channels, moved=self.moved)

    def extra_repr(self) -> str:
        return f"{self.input_channels}, moved={self.moved}"


class HalfAbs(Fixed):
    """beta-Abs at beta = 1/2: |x| for the first half of the channels; MaxMin up to a rotation of pairs. Exact."""

    def function(self) -> Callable[[Tensor], Tensor]:
        return half_absolute


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


class OrthogonalMix(LipschitzLayer):
    """x -> W x at every pixel; with `moved` it is x -> W' S W x, S the shift of `Shift`.

    W is an orthogonal matrix that is a parameter, and starts at random. Not guaranteed by the layer: that it stays
    orthogonal. The proof is of the matrix as stored.
    """

    recordable: ClassVar[bool] = False  # its optimiser asks the host how long a step is

    def __init__(
        self, channels: int, moved: int | None = None, *, device: Device = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        require_counts(channels=channels)
        self.input_channels, self.takes_images_only = channels, moved is not None
        self.moved = None if moved is None else Shift(channels, moved).moved
        self.weight = nn.Parameter(torch.empty(channels, channels, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():  # the factorisation behind it does not exist in half precision
            self.weight.copy_(nn.init.orthogonal_(self.weight.float()))

    def forward(self, x: Tensor) -> Tensor:
        return rotate(x, like_input(self.weight, x), self.moved)

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        W, moved = self.weight.detach().double().clone(), self.moved
        return linear_map(lambda x: rotate(x, W, moved), shape, [product_with(W)] * (1 if moved is None else 2))

    def lipschitz_bound(self, input_size: tuple[int, int] | None = None) -> float:
        return self.proved((len(self.weight), 1, 1)).lipschitz  # shifts keep the norm of images of every size

    def extra_repr(self) -> str:
        return str(self.input_channels) if self.moved is None else f"{self.input_channels}, moved={self.moved}"
