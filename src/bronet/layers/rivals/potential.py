"""The step along a convex potential, x -> x - 2 U' relu(U x + b) with |U| at most one: CPL and SLL.

Its Jacobian I - 2 U' D U, with D diagonal in [0, 1], is symmetric with eigenvalues in [1 - 2 |U|^2, 1], so the norm is
at most max(1, 2 |U|^2 - 1): the published layers differ only in how they bring |U| to one. The bias is added to the
normalised U x; it stands for the published bias times the normalisation.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bronet.layers.base import like_input, require_counts
from bronet.layers.convolution import Convolution, Options
from bronet.layers.regularized_conv import power_iteration
from bronet.layers.rivals.spatial import convolve_kept_size
from bronet.ortho.reflector import embed_channels
from bronet.ortho.rescaling import Rescaled, rescaled
from bronet.ortho.spd import unit_scaled
from bronet.proof.proved_map import ProvedMap, arithmetic, gamma, norm_of_constant, up
from bronet.proof.reflector import reflector_norm
from bronet.proof.spectral import absolute_convolution_norm, kept_size_norm, patch_convolution, weighted_sum_norm

# Power-iteration steps of CPL at the start, and the size it estimates the norm at where none is given.
_FIRST_STEPS = 50
_ESTIMATED_SIZE = (16, 16)

# SLL's learned weights are held within e^60 of one another, so that no sum overflows or vanishes.
_WIDEST_LOG_RATIO = 60.0


class Key(NamedTuple):
    """The precision of a kernel; the image size too where its normalisation depends on it."""

    precision: torch.dtype
    size: tuple[int, int] | None = None


class BoundedKernel(NamedTuple):
    """A float64 kernel and a proved upper bound on the norm of its convolution."""

    kernel: Tensor
    norm: float


class PotentialConv2d(Convolution[Key, Tensor]):
    """A nonlinear 1-Lipschitz layer that is square: it runs at max(c_in, c_out) channels, c_in after the stride.

    Arguments as in `Convolution`, kernel_size odd; missing channels are zeros, superfluous ones are dropped. U has
    `hidden_channels` rows.
    """

    options: ClassVar[frozenset[str]] = frozenset({"hidden_channels"})
    needs_odd_kernel: ClassVar[bool] = True

    def make_parameters(self, empty: Callable[..., Tensor], options: Options) -> None:
        self.channels = max(self.inner_channels, self.out_channels)
        hidden = self.channels if options.hidden_channels is None else options.hidden_channels
        require_counts(hidden_channels=hidden)
        self.own_kernel(empty(hidden, self.channels, self.kernel_size, self.kernel_size))
        self.bias = nn.Parameter(empty(hidden))

    def reset_parameters(self) -> None:
        """Start from normals that keep the variance."""
        nn.init.kaiming_normal_(self.weight)
        nn.init.zeros_(self.bias)

    @abstractmethod
    def bounded_kernel(self, size: tuple[int, int]) -> BoundedKernel:
        """Return U in float64 with a proved norm on images of this size."""

    def convolve(self, x: Tensor) -> Tensor:
        x = embed_channels(x, self.channels, dim=1)
        U = like_input(self.derived(self.key_for(x)), x)
        convolve = partial(convolve_kept_size, circular=self.circular)
        return _step(x, U, self.bias.to(x.dtype), convolve)[:, : self.out_channels]

    def key_for(self, x: Tensor) -> Key:
        """Return what U depends on besides the parameters, for activations at the layer's width."""
        return Key(self.precision_for(x))

    def proved_convolve(self, size: tuple[int, int]) -> ProvedMap:
        U, norm = self.bounded_kernel(size)
        # The bias is cloned: a model in float64 must not share its numbers with a proof.
        bias, inner, outer = self.bias.detach().double().clone(), self.channels, self.out_channels
        convolve = partial(patch_convolution, circular=self.circular)
        shift = norm_of_constant(bias, math.prod(size))
        gain, offset = _rounding(U, norm, shift)

        def apply(x: Tensor) -> Tensor:
            return _step(embed_channels(x, inner, dim=1), U, bias, convolve)[:, :outer]

        return ProvedMap(apply, (self.out_channels, *size), reflector_norm(up(norm**2)), gain, offset)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, hidden_channels={self.weight.shape[0]}"


class CPLConv2d(PotentialConv2d):
    """x - 2 U' relu(U x + b) with U = W / |W| (Meunier et al. 2022); arguments as in PotentialConv2d.

    Training divides by a power-iteration estimate of |W|, which can be too small. Evaluation divides by a proved norm
    for images of this size where that is larger, as the proof does: 1-Lipschitz. The last norm is kept with the kernel
    that it was proved for, and serves as long as kernel and size are the same.

    Args:
        input_size: training estimates the norm at it, by default at 16 x 16 pixels after the stride.
    """

    forward_uses_estimate: ClassVar[bool] = True
    parameter_methods: ClassVar[tuple[str, ...]] = ("update_estimate",)
    power_vector: Tensor

    def make_parameters(self, empty: Callable[..., Tensor], options: Options) -> None:
        super().make_parameters(empty, options)
        h, w = _ESTIMATED_SIZE
        if self.input_size is not None:
            h, w = (side // self.stride for side in self.input_size)
        # A circular convolution on this grid contains the zero-padded one: its norm is what proofs of large images use.
        margin = 0 if self.circular else self.kernel_size - 1
        self._proved: tuple[tuple[int, int], BoundedKernel] | None = None
        self.register_buffer("power_vector", empty(1, self.channels, h + margin, w + margin))

    def reset_parameters(self) -> None:
        """Start from normals that keep the variance, and an estimate of their norm."""
        super().reset_parameters()
        nn.init.normal_(self.power_vector)
        if self.power_vector.device.type != "meta":
            self.update_estimate(_FIRST_STEPS)

    @torch.no_grad()
    def update_estimate(self, steps: int) -> None:
        """Take power-iteration steps on W'W, warm-started from the stored vector."""
        W = unit_scaled(self.weight.to(torch.promote_types(torch.float32, self.weight.dtype)))

        def gram(v: Tensor) -> Tensor:
            return convolve_kept_size(convolve_kept_size(v, W, circular=True), _adjoint(W), circular=True)

        self.power_vector.copy_(power_iteration(gram, self.power_vector.to(W.dtype), steps))

    def key_for(self, x: Tensor) -> Key:
        return Key(self.precision_for(x), None if self.training else (x.shape[-2], x.shape[-1]))

    def derive(self, key: Key) -> Tensor:
        if key.size is None:
            return self._estimated(key.precision)
        return self.bounded_kernel(key.size).kernel.to(key.precision)

    def _estimated(self, dtype: torch.dtype) -> Tensor:
        """Return W over the estimate of its norm, in this precision."""
        W, v = unit_scaled(self.V(dtype)), self.power_vector.to(dtype)
        estimate = convolve_kept_size(v, W, circular=True).norm() / v.norm()
        # Scaled to a largest entry of one, the norm is at least one: an estimate below is no estimate yet.
        return W / estimate.clamp_min(1.0)

    def bounded_kernel(self, size: tuple[int, int]) -> BoundedKernel:
        U = self._estimated(torch.float64)
        norm = self._norm(U.detach(), size)
        if norm <= 1:
            return BoundedKernel(U, norm)
        return BoundedKernel(U / norm, up(1 + gamma(2) * absolute_convolution_norm(U.detach()) / norm))

    def _norm(self, U: Tensor, size: tuple[int, int]) -> float:
        last_size, last = self._proved or (None, BoundedKernel(U, 0.0))
        if last_size != size or U.device != last.kernel.device or not torch.equal(U, last.kernel):
            last = BoundedKernel(U.clone(), kept_size_norm(U, size, circular=self.circular))
            self._proved = size, last
        return last.norm


class SLLConv2d(PotentialConv2d):
    """x - 2 U' relu(U x + b) with U' = W T^-1/2 (Araujo et al. 2023); arguments as in PotentialConv2d.

    With T_i the absolute sums of row i of W'W, weighted by a learned q, T dominates W'W and the layer is 1-Lipschitz
    for every parameter and image size. As relu is positively homogeneous, T^-1 is split evenly.
    """

    def make_parameters(self, empty: Callable[..., Tensor], options: Options) -> None:
        super().make_parameters(empty, options)
        self.log_q = nn.Parameter(torch.zeros_like(self.bias))

    def reset_parameters(self) -> None:
        """Start from normals that keep the variance, with equal weights q."""
        super().reset_parameters()
        nn.init.zeros_(self.log_q)

    def _rescaled(self, dtype: torch.dtype) -> Rescaled:
        """Return the kernel of W T^-1/2, whose input channels are the hidden ones."""
        log_q = self.log_q.to(dtype)
        q = (log_q - log_q.detach().max()).clamp_min(-_WIDEST_LOG_RATIO).exp()
        return rescaled(self.V(dtype).transpose(0, 1), q)

    def derive(self, key: Key) -> Tensor:
        return self._rescaled(key.precision).kernel.transpose(0, 1)

    def bounded_kernel(self, size: tuple[int, int]) -> BoundedKernel:
        kernel, weights = self._rescaled(torch.float64)
        return BoundedKernel(kernel.transpose(0, 1), weighted_sum_norm(kernel, weights))


def _step(x: Tensor, U: Tensor, bias: Tensor, convolve: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return x - 2 U' relu(U x + b)."""
    return x - 2 * convolve(F.relu(convolve(x, U) + bias[:, None, None]), _adjoint(U))


def _adjoint(U: Tensor) -> Tensor:
    """Return the kernel of the adjoint convolution."""
    return U.transpose(0, 1).flip(-2, -1)


def _rounding(U: Tensor, norm: float, shift: float) -> tuple[float, float]:
    """Return gain and offset of computing x - 2 U' relu(U x + b), where the bias image has norm at most `shift`."""
    hidden, channels, k, _ = U.shape
    absolute = absolute_convolution_norm(U)
    forth, back = gamma(channels * k * k + 1), gamma(hidden * k * k)
    lost = arithmetic().underflow
    first, first_offset = forth * absolute, forth * shift + 2 * lost  # U x + b; relu is exact and 1-Lipschitz
    second = norm * first + back * absolute * (norm + first)
    second_offset = norm * first_offset + back * absolute * (shift + first_offset) + lost
    gain = 2 * second + gamma(1) * (1 + 2 * norm**2 + 2 * second)
    offset = 2 * second_offset + gamma(1) * (2 * norm * shift + 2 * second_offset)
    return up(gain), up(offset + lost)
