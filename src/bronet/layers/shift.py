"""Layers that shift or scale: the input's normalisation, centring with bias behind a layer, scales with a limit.

Normalisation is a layer so that radii stay in pixel space: one over its standard deviation is a factor of the network's
Lipschitz constant. Centring is not in the paper's text; the published networks have it (docs/deviations.md).
"""

import math
from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.layers.base import Device, LipschitzLayer, OneLipschitz, require_counts
from bronet.proof.proved_map import ProvedMap, arithmetic, gamma, norm_of_constant, shift, up

_MOMENTUM = 0.1
LARGEST_SCALE = 2.0**60
"""Of layers that scale: its square, and one over that, are numbers in float32, too."""


class Normalization(LipschitzLayer):
    """x -> (x - mean) / std with one mean per channel and one common std, so that the constant is 1 / std."""

    mean: Tensor

    def __init__(
        self, mean: tuple[float, ...], *, std: float = 1.0, device: Device = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        if not std > 0:
            raise BronetError(f"std of the normalisation must be positive, got {std}")
        self.std, self.input_channels = std, len(mean)
        self.register_buffer("mean", torch.tensor(mean, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return (x - _column(self.mean, x)) / self.std

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        mean = self.mean.detach().double().clone()  # a model in float64 must not share its numbers with a proof
        size, std, lost = norm_of_constant(mean, math.prod(shape[1:])), self.std, arithmetic().underflow
        divisor = mean.new_tensor(std)  # a plain number would have seven digits in an exported file
        # A subtraction, and a division that some devices compute as a product with 1 / std: three roundings.
        gain, offset = gamma(3) / std, gamma(3) * size / std + lost / std + lost
        apply = lambda x: (x - _column(mean, x)) / divisor  # noqa: E731
        return ProvedMap(apply, shape, self.lipschitz_bound(), up(gain), up(offset))

    def lipschitz_bound(self, input_size: tuple[int, int] | None = None) -> float:
        return up(1 / self.std)

    def lipschitz_estimate(self) -> float:
        return 1 / self.std


def local_mean(mean: Tensor) -> Tensor:
    """Return the mean over the batch in the one process that has all of it: its own."""
    return mean


class _PerChannel(LipschitzLayer):
    """A layer with a bias for every channel."""

    def __init__(self, channels: int, *, device: Device = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        require_counts(channels=channels)
        self.input_channels = channels
        self.bias = nn.Parameter(torch.zeros(channels, device=device, dtype=dtype))
        self.add_numbers()

    def add_numbers(self) -> None:
        """Make what a layer has besides its bias, like that in device and precision."""


class _Shift(OneLipschitz, _PerChannel):
    """x -> x - mean + bias per channel, the mean where there is one."""

    mean: Tensor | None

    @abstractmethod
    def mean_of(self, x: Tensor) -> Tensor | None:
        """Return the mean to subtract: in training that of the batch, which the running mean follows."""

    def forward(self, x: Tensor) -> Tensor:
        return x + _column(self._without(self.mean_of(x)).to(x.dtype), x)

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        constant = self._without(self.mean).detach().double().clone()  # a float64 model must not share it with a proof
        return shift(constant.view(-1, *(1 for _ in shape[1:])), shape)

    def _without(self, mean: Tensor | None) -> Tensor:
        return self.bias if mean is None else self.bias - mean


class Centring(_Shift):
    """x -> x - mean + bias per channel: the batch's mean in training, a running one (momentum 0.1) in evaluation.

    A constant shift in evaluation, hence 1-Lipschitz there. In training mode images of a batch influence one another;
    where a batch is shared by several processes, `mean_over_all` turns this process's mean into that of all.
    """

    mean: Tensor
    mean_over_all: Callable[[Tensor], Tensor]

    def add_numbers(self) -> None:
        self.register_buffer("mean", torch.zeros_like(self.bias, requires_grad=False))
        self.mean_over_all = local_mean

    def mean_of(self, x: Tensor) -> Tensor:
        if not self.training:
            return self.mean
        mean = self.mean_over_all(_channel_mean(x))
        with torch.no_grad():
            self.mean.lerp_(mean.to(self.mean.dtype), _MOMENTUM)
        return mean


class Bias(_Shift):
    """x -> x + bias per channel."""

    mean = None
    mean_over_all: Callable[[Tensor], Tensor] = staticmethod(local_mean)

    def mean_of(self, x: Tensor) -> None:
        """Nothing is centred."""


class _Scaled(_PerChannel):
    """x -> scale x + shift per channel, with |scale| at most `limit`."""

    def __init__(
        self, channels: int, *, limit: float = 1.0, device: Device = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(channels, device=device, dtype=dtype)
        if type(limit) not in (int, float) or not 1 / LARGEST_SCALE <= limit <= LARGEST_SCALE:
            raise BronetError(f"limit of {type(self).__name__} must be a number from 2^-60 to 2^60, got {limit!r}")
        self.limit = limit

    @abstractmethod
    def scale_and_shift(self, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return them for a batch; without one, and in evaluation for every batch, those of evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        scale, shift = self.scale_and_shift(x if self.training else None)
        return x * _column(scale.to(x.dtype), x) + _column(shift.to(x.dtype), x)

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        scale, shift = (values.detach().double().clone() for values in self.scale_and_shift())
        size, norm = norm_of_constant(shift, math.prod(shape[1:])), up(float(scale.abs().max()))
        lost = arithmetic().underflow
        apply = lambda x: x * _column(scale, x) + _column(shift, x)  # noqa: E731
        return ProvedMap(apply, shape, norm, up(gamma(2) * norm), up(gamma(2) * (size + lost) + 2 * lost))

    def lipschitz_estimate(self) -> Tensor:
        return self.scale_and_shift()[0].abs().max()


class Scale(_Scaled):
    """x -> limit tanh(weight) x + bias per channel: learned factors that no training makes larger than `limit`."""

    def add_numbers(self) -> None:
        self.weight = nn.Parameter(torch.ones_like(self.bias))

    def scale_and_shift(self, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.limit * torch.tanh(self.weight), self.bias


class Standardization(_Scaled):
    """A batch norm whose division is bounded: x -> (x - mean) min(limit, 1 / deviation) + bias per channel.

    Mean and variance are the batch's in training and running ones (momentum 0.1) in evaluation, where the layer is
    `limit`-Lipschitz whatever the images were. In training mode images of a batch influence one another.
    """

    mean: Tensor
    variance: Tensor

    def add_numbers(self) -> None:
        self.register_buffer("mean", torch.zeros_like(self.bias, requires_grad=False))
        self.register_buffer("variance", torch.ones_like(self.bias, requires_grad=False))

    def scale_and_shift(self, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        mean, variance = self.mean, self.variance
        if x is not None:
            variance, mean = torch.var_mean(x.to(mean.dtype), [d for d in range(x.ndim) if d != 1], correction=0)
            with torch.no_grad():
                self.mean.lerp_(mean, _MOMENTUM)
                self.variance.lerp_(variance, _MOMENTUM)
        scale = variance.clamp_min(self.limit**-2).rsqrt().clamp_max(self.limit)
        return scale, self.bias - mean * scale


def _channel_mean(x: Tensor) -> Tensor:
    if x.is_cuda and x.ndim == 3 and not x.requires_grad:
        from bronet.kernels.centred_maxmin import channel_mean

        return channel_mean(x)
    return x.mean([d for d in range(x.ndim) if d != 1], dtype=torch.promote_types(x.dtype, torch.float32))


def _column(values: Tensor, x: Tensor) -> Tensor:
    return values.view(-1, *(1 for _ in range(x.ndim - 2)))
