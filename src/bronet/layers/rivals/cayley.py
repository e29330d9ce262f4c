"""The Cayley convolution (Trockman and Kolter 2021): (I - A)(I + A)^-1 of a skew-Hermitian A at every frequency.

Orthogonal for every parameter, up to rounding. Where channels differ, the tall form of the transform is used, with
a solve of the smaller size.
"""

import math

from torch import Tensor, nn

from bronet.layers.rivals.fourier_conv import FourierConv2d
from bronet.ortho.cayley import cayley


class CayleyConv2d(FourierConv2d):
    """x -> (I - A)(I + A)^-1 x with A = V - V*; arguments as in FourierConv2d.

    The identity of a residual re-parameterisation cancels in V - V*, so this layer has none of its own: V = 0 is the
    identity already.
    """

    def reset_parameters(self) -> None:
        """Start like a plain convolution (uniform, variance 1 / (3 c_in k^2)), as the published layer does."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.residual is not None:
            self.residual.reset_parameters()

    def orthogonalize(self, V: Tensor) -> Tensor:
        return cayley(V)
