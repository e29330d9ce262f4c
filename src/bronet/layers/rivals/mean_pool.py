"""The mean over windows, scaled to norm one: the pooling of the published CPL and SLL networks."""

import torch
from torch import Tensor

from bronet.errors import BronetError
from bronet.layers.base import LipschitzLayer, batch_first
from bronet.layers.shape import cut_windows
from bronet.proof.proved_map import ProvedMap
from bronet.proof.rounding import UNDERFLOW, gamma


def scaled_mean_pool(x: Tensor, patch: int) -> Tensor:
    """Return the sum over patch x patch windows divided by `patch`."""
    return batch_first(torch.sum(cut_windows(x, patch), dim=(1, 3)) / patch)


class ScaledMeanPool(LipschitzLayer):
    """The sum over patch x patch windows divided by `patch`: the product with a unit vector for every window."""

    def __init__(self, patch: int) -> None:
        super().__init__()
        if patch < 1:
            raise BronetError(f"patch of ScaledMeanPool must be at least 1, got {patch}")
        self.patch = patch

    def forward(self, x: Tensor) -> Tensor:
        return scaled_mean_pool(x, self.patch)

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        (c, h, w), patch = shape, self.patch
        # p^2 - 1 additions, and a division that some devices compute as a product with 1 / p: two roundings. The norm
        # of the absolute values is one as well.
        gain, apply = gamma(patch**2 + 1), lambda x: scaled_mean_pool(x, patch)
        return ProvedMap(apply, (c, h // patch, w // patch), 1.0, gain, UNDERFLOW)

    def lipschitz_bound(self, input_size: tuple[int, int] | None = None) -> float:
        return 1.0
