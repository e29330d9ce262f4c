"""BCOP (Li et al. 2019): an explicit orthogonal kernel by block convolution of projections.

Orthogonal with circular edges where Bjorck's iteration has converged; its residual only shrinks singular values, and
the bound is proved for the kernel that came out. With zero padding the layer is a contraction.
"""

import torch
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.layers.rivals.arguments import require_size
from bronet.layers.rivals.spatial_conv import SpatialConv2d
from bronet.ortho.bcop import bcop_kernel
from bronet.ortho.bjorck import BJORCK_STEPS


class BCOPConv2d(SpatialConv2d):
    """A (semi-)orthogonal core matrix and 2 (k - 1) projections of half rank on the smaller side.

    Args: as in SpatialConv2d; `steps` of Bjorck's iteration, 20 in the published layer.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        *,
        steps: int = BJORCK_STEPS,
        stride: int = 1,
        circular: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride=stride, circular=circular)
        if steps < 1:
            raise BronetError(f"steps of Bjorck's iteration must be at least 1, got {steps}")
        self.steps = steps
        c = min(self.in_channels, out_channels)
        self.core = nn.Parameter(torch.empty(out_channels, self.in_channels, device=device, dtype=dtype))
        shape = (2 * (kernel_size - 1), c, max(1, c // 2))
        halves = torch.empty(shape, device=device, dtype=dtype)
        # A 1 x 1 kernel is the core alone. An empty parameter would never get a gradient.
        self.halves = nn.Parameter(halves) if kernel_size > 1 else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start from random orthogonal matrices, where Bjorck's iteration has nothing to do."""
        if self.core.device.type == "meta":
            return
        with torch.no_grad():  # the factorisation behind it does not exist in half precision
            self.core.copy_(nn.init.orthogonal_(self.core.float()))
            for half in self.halves if self.halves is not None else ():
                half.copy_(nn.init.orthogonal_(half.float()))

    def derive(self, key: object) -> Tensor:
        assert isinstance(key, torch.dtype)
        halves = self.halves.to(key) if self.halves is not None else None
        return bcop_kernel(self.core.to(key), halves, steps=self.steps)

    def lipschitz_bound(self, input_size: tuple[int, int] | None = None) -> float:
        """Return the proved bound for this size, which must be given."""
        return self.proved((self.image_channels, *require_size(input_size, "BCOPConv2d"))).lipschitz
