"""Layers of layers: residuals, branches, groups of channels. What is proved follows from the parts.

`Mix`, `Residual` and `Parallel` are ordinary modules, which a proof reads as graphs (docs/soundness.md): sums add the
constants of their branches, a concatenation of branches that share their input takes the root of the sum of squares.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.layers.base import LipschitzLayer
from bronet.proof.proved_map import ProvedMap, up


class Mix(nn.Module):
    """(1 - w) x + w y, where w = sigmoid(weight) is learned: no more Lipschitz than the more Lipschitz of the two."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        w = torch.sigmoid(self.weight)
        return (1 - w) * x + w * y


class Residual(nn.Module):
    """x and f(x) together: (1 - w) x + w f(x) with a learned w, or x + f(x) with `plain`.

    For f with constant L the constant is (1 - w) + w L, at most one where L is at most one; that of the plain sum is
    1 + L, which two for each block makes useless in a deep network.
    """

    def __init__(self, branch: nn.Module, *, plain: bool = False) -> None:
        super().__init__()
        self.branch, self.mix = branch, None if plain else Mix()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.branch(x)
        return x + y if self.mix is None else self.mix(x, y)


class Parallel(nn.Module):
    """Branches of one input, concatenated along the channels: the root of the sum of their constants' squares."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        if not branches:
            raise BronetError("Parallel must have at least one branch, got none")
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


class Groups(LipschitzLayer):
    """Layers side by side, each for its own part of the channels, equal parts: the largest of their constants.

    `Groups(BROConv2d(4, 4, 3), BROConv2d(4, 4, 3))` is `BROConv2d(8, 8, 3, groups=2)`.
    """

    layers: Sequence[LipschitzLayer]

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        if not layers or not all(isinstance(layer, LipschitzLayer) for layer in layers):
            kinds = ", ".join(type(layer).__name__ for layer in layers) or "none"
            raise BronetError(f"Groups must have Lipschitz layers, one for each part of the channels, got {kinds}")
        self.layers = nn.ModuleList(layers)  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        parts = x.chunk(len(self.layers), dim=1)
        return torch.cat([layer(part) for layer, part in zip(self.layers, parts, strict=True)], dim=1)

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        count = len(self.layers)
        maps = [layer.proved((shape[0] // count, *shape[1:])) for layer in self.layers]
        applies, sizes = [part.apply for part in maps], {part.output_shape[1:] for part in maps}
        if len(sizes) > 1:
            raise BronetError(f"the layers of Groups must give images of one size, got {sorted(sizes)}")

        def apply(x: Tensor) -> Tensor:
            return torch.cat([f(part) for f, part in zip(applies, x.chunk(count, dim=1), strict=True)], dim=1)

        channels = sum(part.output_shape[0] for part in maps)
        # Each part errs by gain |x_i| + offset: together by no more than the largest gain and all offsets say.
        gain, offset = max(part.gain for part in maps), up(sum(part.offset for part in maps))
        lipschitz = max(part.lipschitz for part in maps)
        remark = "; ".join(dict.fromkeys(part.remark for part in maps if part.remark))
        return ProvedMap(apply, (channels, *maps[0].output_shape[1:]), lipschitz, gain, offset, remark=remark)

    def lipschitz_bound(self, input_size: tuple[int, int] | None = None) -> float:
        return max(layer.lipschitz_bound(input_size) for layer in self.layers)

    def lipschitz_estimate(self) -> Tensor | float:
        estimates = [torch.as_tensor(layer.lipschitz_estimate()) for layer in self.layers]
        return torch.stack(estimates).max()

    def update_estimate(self, steps: int) -> None:
        for layer in self.layers:
            layer.update_estimate(steps)

    def reset_parameters(self) -> None:
        """Start every part anew that can be."""
        for layer in self.layers:
            reset = getattr(layer, "reset_parameters", None)
            if callable(reset):
                reset()

    def check_input(self, x: Tensor) -> None:
        self.check_shape(tuple(x.shape[1:]))

    def check_shape(self, shape: tuple[int, ...]) -> None:
        if shape[0] % len(self.layers):
            raise BronetError(f"channels must be a multiple of the {len(self.layers)} groups, got {shape[0]}")
