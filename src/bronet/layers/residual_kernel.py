"""The fixed identity residual V <- I + alpha / sqrt(L) V of the backbone and the dense layers (App. B.2).

I is the identity kernel (ones at the centre tap of channel pairs i, i); alpha is one learned number per output
channel that starts at one, as in the published networks (the text says a scalar); L counts the layers of the block.
"""

import math

import torch
from torch import Tensor, nn

from bronet.layers.base import require_counts
from bronet.ortho.real_dft import memoized


class IdentityResidual(nn.Module):
    """Owns alpha and adds the identity to a kernel (m, n, k, k) or a matrix (m, n)."""

    def __init__(self, weight: Tensor, depth: int) -> None:
        super().__init__()
        require_counts(residual_depth=depth)
        self.depth = depth
        self.alpha = nn.Parameter(weight.new_ones(weight.shape[0]))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.alpha)

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
    """Start a kernel (m, n, k, k) at the identity, or near it with the residual re-parameterisation."""
    if residual is None:
        nn.init.dirac_(weight)
    else:
        nn.init.normal_(weight, std=1 / weight[:, 0].numel())
        residual.reset_parameters()


@memoized(32)
def identity_kernel(shape: torch.Size, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the identity matrix (m, n), or the identity kernel (m, n, kh, kw) at the centre tap.

    It is made on the CPU: a copy to a GPU has arrived when it returns, so any stream may use what another asked for.
    """
    m, n = shape[:2]
    eye = torch.eye(m, n, dtype=dtype)
    if len(shape) == 2:
        return eye.to(device)
    kh, kw = shape[2:]
    top, left = kh // 2, kw // 2
    return nn.functional.pad(eye[..., None, None], (left, kw - 1 - left, top, kh - 1 - top)).to(device)
