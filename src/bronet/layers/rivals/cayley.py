"""The Cayley convolution (Trockman and Kolter 2021): (I - A)(I + A)^-1 of a skew-Hermitian A at every frequency.

Orthogonal for every parameter, up to rounding. Where channels differ, the tall form of the transform is used, with
a solve of the smaller size.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from bronet.layers.rivals.fourier_conv import FourierConv2d
from bronet.ortho.cayley import cayley


class CayleyConv2d(FourierConv2d):
    """x -> (I - A)(I + A)^-1 x with A = V - V*; arguments as in FourierConv2d.

    There is no residual re-parameterisation: its identity would cancel in V - V*, and V = 0 is the identity already.
    """

    recordable: ClassVar[bool] = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        *,
        stride: int = 1,
        circular: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride=stride, circular=circular, device=device, dtype=dtype
        )

    def reset_parameters(self) -> None:
        """Start like a plain convolution (uniform, variance 1 / (3 c_in k^2)), as the published layer does."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def orthogonalize(self, V: Tensor) -> Tensor:
        return cayley(V)
