"""The Cholesky convolution (Hu et al. 2024, used per frequency in Table 3): L^-1 V with L L* = V V* + ridge.

Singular values s / sqrt(s^2 + e): at most one for every parameter, and close to one where V is well conditioned.
"""

from typing import ClassVar

from torch import Tensor

from bronet.layers.rivals.fourier_conv import FourierConv2d
from bronet.ortho.cholesky import cholesky_orthogonal
from bronet.ortho.spd import CHOLESKY_RIDGE


class CholeskyConv2d(FourierConv2d):
    """x -> L^-1 V x at every frequency; arguments as in FourierConv2d. The ridge is that of the dense layer."""

    recordable: ClassVar[bool] = False

    def orthogonalize(self, V: Tensor) -> Tensor:
        return cholesky_orthogonal(V, ridge=CHOLESKY_RIDGE)
