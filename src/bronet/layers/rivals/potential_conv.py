"""What CPL and SLL share: the step along a convex potential, x -> x - 2 U' relu(U x + b) with |U| at most one.

Its Jacobian I - 2 U' D U, with D diagonal in [0, 1], is symmetric with eigenvalues in [1 - 2 |U|^2, 1], so the norm is
at most max(1, 2 |U|^2 - 1): the published layers differ only in how they bring |U| to one. The bias is added to the
normalised U x; it stands for the published bias times the normalisation.
"""

from abc import abstractmethod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bronet.layers.base import DerivedLayer, require_channels, require_shape
from bronet.layers.rivals.arguments import require_convolution, require_odd_kernel
from bronet.layers.rivals.spatial_conv import convolve_kept_size
from bronet.layers.shape import PixelUnshuffle, unshuffle
from bronet.ortho.reflector import embed_channels
from bronet.proof.convolution import absolute_convolution_norm
from bronet.proof.proved_map import ProvedMap
from bronet.proof.reflector import reflector_norm
from bronet.proof.rounding import UNDERFLOW, gamma, up
from bronet.proof.spatial import patch_convolution


class BoundedKernel(NamedTuple):
    """A float64 kernel and a proved upper bound on the norm of its convolution."""

    kernel: Tensor
    norm: float


class PotentialConv2d(DerivedLayer[Tensor]):
    """A nonlinear 1-Lipschitz layer that is square: it runs at max(c_in, c_out) channels.

    Args:
        in_channels, out_channels: missing channels are zeros, superfluous ones are dropped.
        kernel_size: odd.
        hidden_channels: rows of U; as many as channels by default.
        stride: turned into channels by a pixel unshuffle before the layer.
        circular: wrap around the image instead of padding it with zeros.
    """

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
        super().__init__()
        require_convolution(in_channels, out_channels, kernel_size)
        require_odd_kernel(kernel_size, type(self).__name__)
        self.unshuffle = PixelUnshuffle(stride)
        self.image_channels = in_channels
        self.in_channels, self.out_channels = in_channels * stride**2, out_channels
        self.channels = max(self.in_channels, out_channels)
        hidden = self.channels if hidden_channels is None else hidden_channels
        require_convolution(self.channels, hidden, kernel_size)
        self.kernel_size, self.circular = kernel_size, circular
        shape = (hidden, self.channels, kernel_size, kernel_size)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(hidden, device=device, dtype=dtype))

    @abstractmethod
    def derive(self, key: object) -> Tensor:
        """Return U in the precision `key`, as training normalises it."""

    @abstractmethod
    def bounded_kernel(self, size: tuple[int, int]) -> BoundedKernel:
        """Return U in float64 with a proved norm on images of this size."""

    def forward(self, x: Tensor) -> Tensor:
        require_channels(x, self.image_channels, type(self).__name__)
        x = embed_channels(self.unshuffle(x), self.channels, dim=1)
        U = self.derived(self.precision_for(x))
        if not torch.is_autocast_enabled(x.device.type):
            U = U.to(x.dtype)
        hidden = F.relu(convolve_kept_size(x, U, circular=self.circular) + self.bias.to(x.dtype)[:, None, None])
        y = x - 2 * convolve_kept_size(hidden, _adjoint(U), circular=self.circular)
        return y[:, : self.out_channels]

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        require_shape(shape, self.image_channels, type(self).__name__, images=True)
        stride = self.unshuffle.factor
        size = (shape[1] // stride, shape[2] // stride)
        with torch.no_grad():
            U, norm = self.bounded_kernel(size)
        # The bias is cloned: a model in float64 must not share its numbers with a proof.
        adjoint, bias = _adjoint(U), self.bias.detach().double().clone()
        inner, outer, circular = self.channels, self.out_channels, self.circular

        def apply(x: Tensor) -> Tensor:
            x = embed_channels(unshuffle(x, stride), inner, dim=1)
            hidden = F.relu(patch_convolution(x, U, circular=circular) + bias[:, None, None])
            y = x - 2 * patch_convolution(hidden, adjoint, circular=circular)
            return y[:, :outer]

        shift = up(float(bias.norm()) * (size[0] * size[1]) ** 0.5)
        gain, offset = _rounding(U, norm, shift)
        return ProvedMap(apply, (self.out_channels, *size), reflector_norm(up(norm**2)), gain, offset)

    def extra_repr(self) -> str:
        return (
            f"{self.image_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"hidden_channels={self.weight.shape[0]}, stride={self.unshuffle.factor}, circular={self.circular}"
        )


def _adjoint(U: Tensor) -> Tensor:
    """Return the kernel of the adjoint convolution."""
    return U.transpose(0, 1).flip(-2, -1)


def _rounding(U: Tensor, norm: float, shift: float) -> tuple[float, float]:
    """Return gain and offset of computing x - 2 U' relu(U x + b), where the bias image has norm at most `shift`."""
    hidden, channels, k, _ = U.shape
    absolute = absolute_convolution_norm(U)
    forth, back = gamma(channels * k * k + 1), gamma(hidden * k * k)
    first, first_offset = forth * absolute, forth * shift  # U x + b; relu is exact and 1-Lipschitz
    second = norm * first + back * absolute * (norm + first)
    second_offset = norm * first_offset + back * absolute * (shift + first_offset)
    gain = 2 * second + gamma(1) * (1 + 2 * norm**2 + 2 * second)
    offset = 2 * second_offset + gamma(1) * (2 * norm * shift + 2 * second_offset)
    return up(gain), up(offset + UNDERFLOW)
