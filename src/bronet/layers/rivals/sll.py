"""SLL, the layer from a semidefinite condition (Araujo et al. 2023): x - 2 W T^-1 relu(W'x + b), T diagonal.

With T_i the absolute sums of row i of W'W, weighted by a learned q, T dominates W'W and the layer is 1-Lipschitz for
every parameter and image size. As relu is positively homogeneous, T^-1 is split evenly: U' = W T^-1/2.
"""

import torch
from torch import Tensor, nn

from bronet.layers.rivals.potential_conv import BoundedKernel, PotentialConv2d
from bronet.ortho.rescaling import Rescaled, rescaled
from bronet.proof.reflector import reflector_norm
from bronet.proof.rescaling import weighted_sum_norm
from bronet.proof.rounding import up

# The learned weights are held within e^60 of one another, so that no sum overflows or vanishes.
_WIDEST_LOG_RATIO = 60.0


class SLLConv2d(PotentialConv2d):
    """x - 2 U' relu(U x + b) with U' = W T^-1/2; arguments as in PotentialConv2d."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        *,
        hidden_channels: int | None = None,
        stride: int = 1,
        circular: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            hidden_channels=hidden_channels,
            stride=stride,
            circular=circular,
            device=device,
            dtype=dtype,
        )
        self.log_q = nn.Parameter(torch.zeros_like(self.bias))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start from normals that keep the variance, with equal weights q."""
        nn.init.kaiming_normal_(self.weight)
        nn.init.zeros_(self.bias)
        nn.init.zeros_(self.log_q)

    def _rescaled(self, dtype: torch.dtype) -> Rescaled:
        """Return the kernel of W T^-1/2, whose input channels are the hidden ones."""
        log_q = self.log_q.to(dtype)
        q = (log_q - log_q.detach().max()).clamp_min(-_WIDEST_LOG_RATIO).exp()
        return rescaled(self.weight.to(dtype).transpose(0, 1), q)

    def derive(self, key: object) -> Tensor:
        assert isinstance(key, torch.dtype)
        return self._rescaled(key).kernel.transpose(0, 1)

    def bounded_kernel(self, size: tuple[int, int]) -> BoundedKernel:
        kernel, weights = self._rescaled(torch.float64)
        return BoundedKernel(kernel.transpose(0, 1), weighted_sum_norm(kernel, weights))

    def lipschitz_bound(self, input_size: tuple[int, int] | None = None) -> float:
        """Return the proved bound, the same for every size."""
        with torch.no_grad():
            return reflector_norm(up(weighted_sum_norm(*self._rescaled(torch.float64)) ** 2))
