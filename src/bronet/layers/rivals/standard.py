"""A plain convolution, for comparing cost: nothing constrains it.

Its bound is proved like that of any kernel, and grows as training likes.
"""

import torch
from torch import Tensor, nn

from bronet.layers.rivals.arguments import require_size
from bronet.layers.rivals.spatial_conv import KernelConv2d


class StandardConv2d(KernelConv2d):
    """x -> K x; arguments as in SpatialConv2d. No guarantee on its norm, which is bounded as stored."""

    def reset_parameters(self) -> None:
        """Start from normals that keep the variance (Kaiming, linear)."""
        nn.init.kaiming_normal_(self.weight, nonlinearity="linear")

    def derive(self, key: object) -> Tensor:
        assert isinstance(key, torch.dtype)
        return self.weight.to(key)

    def lipschitz_bound(self, input_size: tuple[int, int] | None = None) -> float:
        """Return the proved bound for this size, which must be given."""
        return self.proved((self.image_channels, *require_size(input_size, "StandardConv2d"))).lipschitz
