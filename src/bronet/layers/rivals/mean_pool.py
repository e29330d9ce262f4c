"""The mean over windows, scaled to norm one: the pooling of the published CPL and SLL networks."""

import torch
from torch import Tensor

from bronet.errors import BronetError
from bronet.layers.base import LipschitzLayer
from bronet.proof.proved_map import ProvedMap
from bronet.proof.rounding import UNDERFLOW, gamma


class ScaledMeanPool(LipschitzLayer):
    """The sum over patch x patch windows divided by `patch`: the product with a unit vector for every window."""

    def __init__(self, patch: int) -> None:
        super().__init__()
        if patch < 1:
            raise BronetError(f"patch of ScaledMeanPool must be at least 1, got {patch}")
        self.patch = patch

    def forward(self, x: Tensor) -> Tensor:
        p = self.patch
        h, w = x.shape[-2:]
        if h % p or w % p:
            raise BronetError(f"image height and width must be multiples of {p}, got {h} x {w}")
        windows = x.unflatten(3, (w // p, p)).unflatten(2, (h // p, p))
        return torch.sum(windows, dim=(3, 5)) / p

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        c, h, w = shape
        # p^2 - 1 additions, and a division that some devices compute as a product with 1 / p: two roundings. The norm
        # of the absolute values is one as well.
        gain = gamma(self.patch**2 + 1)
        return ProvedMap(self.forward, (c, h // self.patch, w // self.patch), 1.0, gain, UNDERFLOW)

    def lipschitz_bound(self, input_size: tuple[int, int] | None = None) -> float:
        return 1.0
