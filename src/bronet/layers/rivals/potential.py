"""The step along a convex potential, x -> x - 2 U' relu(U x + b) with |U| at most one: CPL and SLL.

Its Jacobian I - 2 U' D U, with D diagonal in [0, 1], is symmetric with eigenvalues in [1 - 2 |U|^2, 1], so the norm is
at most max(1, 2 |U|^2 - 1): the published layers differ only in how they bring |U| to one. The bias is added to the
normalised U x; it stands for the published bias times the normalisation.
"""

from abc import abstractmethod
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.layers.base import DerivedLayer, require_channels, require_shape
from bronet.layers.rivals.arguments import require_convolution, require_odd_kernel
from bronet.layers.rivals.spatial import convolve_kept_size
from bronet.layers.shape import PixelUnshuffle, unshuffle
from bronet.ortho.reflector import embed_channels
from bronet.ortho.rescaling import Rescaled, rescaled
from bronet.ortho.spd import unit_scaled
from bronet.proof.convolution import absolute_convolution_norm, kept_size_norm, patch_convolution, weighted_sum_norm
from bronet.proof.proved_map import ProvedMap
from bronet.proof.reflector import reflector_norm
from bronet.proof.rounding import UNDERFLOW, gamma, up


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


_FIRST_STEPS = 50


class CPLConv2d(PotentialConv2d):
    """x - 2 U' relu(U x + b) with U = W / |W|; arguments as in PotentialConv2d.

    Args:
        input_size: image size for which training estimates the norm, after the stride; the forward takes any size.
    """

    forward_uses_estimate: ClassVar[bool] = True
    parameter_methods: ClassVar[tuple[str, ...]] = ("update_estimate",)
    power_vector: Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        *,
        hidden_channels: int | None = None,
        input_size: tuple[int, int] = (16, 16),
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
        if min(input_size) < 1:
            raise BronetError(f"input_size must be at least 1 x 1, got {input_size}")
        self.input_size = input_size
        # A circular convolution on this grid contains the zero-padded one: its norm is what proofs of large images use.
        margin = 0 if circular else kernel_size - 1
        grid = (input_size[0] + margin, input_size[1] + margin)
        self.register_buffer("power_vector", torch.empty(1, self.channels, *grid, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start from normals that keep the variance, and an estimate of their norm."""
        nn.init.kaiming_normal_(self.weight)
        nn.init.zeros_(self.bias)
        nn.init.normal_(self.power_vector)
        if self.power_vector.device.type != "meta":
            self.update_estimate(_FIRST_STEPS)

    @torch.no_grad()
    def update_estimate(self, steps: int) -> None:
        """Take power-iteration steps on W'W, warm-started from the stored vector."""
        W = unit_scaled(self.weight.to(torch.promote_types(torch.float32, self.weight.dtype)))
        adjoint, v = W.transpose(0, 1).flip(-2, -1), self.power_vector.to(W.dtype)
        for _ in range(steps):
            moved = convolve_kept_size(convolve_kept_size(v, W, circular=True), adjoint, circular=True)
            size = moved.norm()
            v = torch.where(size > 0, moved / size, v)  # a zero kernel leaves the vector as it was
        self.power_vector.copy_(v)

    def derive(self, key: object) -> Tensor:
        assert isinstance(key, torch.dtype)
        W, v = unit_scaled(self.weight.to(key)), self.power_vector.to(key)
        estimate = convolve_kept_size(v, W, circular=True).norm() / v.norm()
        # Scaled to a largest entry of one, the norm is at least one: an estimate below is no estimate yet.
        return W / estimate.clamp_min(1.0)

    def bounded_kernel(self, size: tuple[int, int]) -> BoundedKernel:
        U = self.derive(torch.float64)
        norm = kept_size_norm(U, size, circular=self.circular)
        if norm <= 1:
            return BoundedKernel(U, norm)
        return BoundedKernel(U / norm, up(1 + gamma(2) * absolute_convolution_norm(U) / norm))

    def lipschitz_bound(self, input_size: tuple[int, int] | None = None) -> float:
        """Return the proved bound for this size (default: the size given at construction)."""
        stride = self.unshuffle.factor
        size = (self.input_size[0] * stride, self.input_size[1] * stride) if input_size is None else input_size
        return self.proved((self.image_channels, *size)).lipschitz


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
