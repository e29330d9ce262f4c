"""Kernels and matrices near the identity: V = I + alpha / sqrt(L) weight (App. B.2).

I has ones at the centre tap of channel pairs i, i; alpha is one learned number per output channel that starts at one,
as in the published networks (the text says a scalar); L, the `residual_depth` of layers, counts those of the block.
"""

import math

import torch
from torch import Tensor, nn

from bronet.layers.base import require_counts
from bronet.ortho.products import memoized


class IdentityResidual(nn.Module):
    """Owns alpha, and adds the identity to a kernel (m, n, k, k) or a matrix (m, n)."""

    def __init__(self, weight: Tensor, depth: int) -> None:
        super().__init__()
        require_counts(residual_depth=depth)
        self.depth = depth
        self.alpha = nn.Parameter(weight.new_ones(weight.shape[0]))

    def forward(self, weight: Tensor) -> Tensor:
        scale = (self.alpha.to(weight.dtype) / math.sqrt(self.depth)).view(-1, *(1 for _ in weight.shape[1:]))
        return torch.addcmul(identity_kernel(weight.shape, weight.device, weight.dtype), scale, weight)


def residual_of(weight: Tensor, depth: int | None) -> IdentityResidual | None:
    """Return the residual of a layer with this parameter and `residual_depth`; None where it has none."""
    return None if depth is None else IdentityResidual(weight, depth)


def with_residual(weight: Tensor, residual: IdentityResidual | None) -> Tensor:
    """Return the kernel that a parameter stands for."""
    return weight if residual is None else residual(weight)


def start_near_identity(weight: nn.Parameter, residual: IdentityResidual | None) -> None:
    """Start a kernel at the identity, or near it with the residual."""
    if residual is None:
        nn.init.dirac_(weight)
    else:
        nn.init.normal_(weight, std=1 / weight[:, 0].numel())
        nn.init.ones_(residual.alpha)


@memoized(32)
def identity_kernel(shape: torch.Size, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the identity matrix (m, n), or the identity kernel (m, n, kh, kw) at the centre tap.

    It is made on the CPU: a copy to a GPU has arrived when it returns, so any stream may use what another asked for.
    """
    is_matrix = len(shape) == 2
    return (torch.eye(*shape, dtype=dtype) if is_matrix else nn.init.dirac_(torch.empty(shape, dtype=dtype))).to(device)
