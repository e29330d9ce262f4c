"""AOL, the almost-orthogonal layer (Prach and Lampert 2022): a kernel rescaled by absolute sums of its autocorrelation.

Norm at most one for every parameter and every image size, by the layer's own theorem, with rounding counted. Nothing
keeps the small singular values from zero: it becomes almost orthogonal only if training makes it so.
"""

import torch
from torch import Tensor, nn

from bronet.layers.rivals.spatial_conv import KernelConv2d
from bronet.ortho.rescaling import Rescaled, rescaled
from bronet.proof.rescaling import weighted_sum_norm


class AOLConv2d(KernelConv2d):
    """x -> K T^-1/2 x, T_i the absolute sum of row i of the kernel's autocorrelation; arguments as in SpatialConv2d."""

    def reset_parameters(self) -> None:
        """Start at the identity kernel, where the rescaling does nothing."""
        nn.init.dirac_(self.weight)

    def derive(self, key: object) -> Tensor:
        assert isinstance(key, torch.dtype)
        return self._rescaled(key).kernel

    def _rescaled(self, dtype: torch.dtype) -> Rescaled:
        weight = self.weight.to(dtype)
        return rescaled(weight, weight.new_ones(self.in_channels))

    def kernel_norm(self, kernel: Tensor, size: tuple[int, int]) -> float:
        with torch.no_grad():
            return weighted_sum_norm(kernel, self._rescaled(torch.float64).weights)

    def lipschitz_bound(self, input_size: tuple[int, int] | None = None) -> float:
        """Return the proved bound, the same for every size."""
        with torch.no_grad():
            return weighted_sum_norm(*self._rescaled(torch.float64))
