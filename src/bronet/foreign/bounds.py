"""Upper bounds on the Lipschitz constants of torch's own modules, in evaluation mode, with the weights they have.

In real arithmetic: the bounds count their own rounding, but not that of the module's forward, so they are facts about a
model and no certificate.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.foreign.steps import kind_of
from bronet.layers import LipschitzLayer
from bronet.layers.faithful import is_altered, overrides_forward
from bronet.proof.convolution import convolution_norm
from bronet.proof.rounding import gamma, up
from bronet.proof.spectral import largest_singular_value


class Bound(NamedTuple):
    """An upper bound, None where none is known, and how it is known or why it is not."""

    value: float | None
    reason: str


_BY_DEFINITION = "for every input"
_OF_WEIGHTS = "norm of these weights"
_ONLY_MOVES = Bound(1.0, "only moves numbers")
_DIVIDES = Bound(None, "divides by a deviation of its own input, which may be as small as it likes")
# Torch's own default: the jump there, relative to the value, is below the rounding of float32.
_SMOOTH_THRESHOLD = 20
# The largest slope of each, rounded up in the last digit (tests/test_check.py measures them).
_SLOPES: dict[type[nn.Module], float] = {
    nn.ReLU: 1.0,
    nn.ReLU6: 1.0,
    nn.Hardtanh: 1.0,
    nn.Tanh: 1.0,
    nn.Sigmoid: 0.25,
    nn.GELU: 1.13,
    nn.SiLU: 1.1,
    nn.Mish: 1.09,
    nn.Hardswish: 1.5,
    nn.SELU: 1.7581,
}
_FIXED: dict[type[nn.Module], Bound] = {
    **{kind: Bound(slope, _BY_DEFINITION) for kind, slope in _SLOPES.items()},
    **dict.fromkeys((nn.Identity, nn.Flatten, nn.Unflatten, nn.PixelUnshuffle, nn.PixelShuffle), _ONLY_MOVES),
    **dict.fromkeys((nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm2d, nn.LocalResponseNorm), _DIVIDES),
}


def bound_of(module: nn.Module, shape: tuple[int, ...]) -> Bound:
    """Return a bound for activations of this shape (of one image), by the module's exact type."""
    kind = kind_of(module)
    if is_altered(module) or overrides_forward(module):
        return Bound(None, "a hook or another forward may change what it gives")
    if isinstance(module, LipschitzLayer):
        proved = module.proved(shape)
        return Bound(proved.lipschitz, proved.remark or "proved")
    if kind in _RULES:
        return _RULES[kind](module, shape)
    return _FIXED.get(kind, Bound(None, "no bound is known for this kind"))


def _convolution(module: nn.Module, shape: tuple[int, ...]) -> Bound:
    assert isinstance(module, nn.Conv2d)
    kernel = _dilated(module.weight.detach().double().cpu(), module.dilation)
    paddings = _paddings(module.padding, kernel)
    if module.padding_mode != "zeros" or len({*paddings}) > 1 or len({*module.stride}) > 1:
        return Bound(None, "only zeros and strides that are the same on all sides are bounded")
    stride, padding = module.stride[0], paddings[0]
    # The convolution of each group stands alone: the norm of all is the largest of theirs.
    parts = kernel.chunk(module.groups)
    size = (shape[1], shape[2])
    return Bound(max(convolution_norm(part, size, stride=stride, padding=padding) for part in parts), _OF_WEIGHTS)


def _paddings(padding: str | tuple[int, ...], kernel: Tensor) -> tuple[int, ...]:
    """Return the zeros added on each side, by axis; "same" adds them by the kernel's taps."""
    if padding == "same":
        taps = kernel.shape[2:]
        return tuple(size for k in taps for size in ((k - 1) // 2, k // 2))
    return (0,) if isinstance(padding, str) else padding


def _dilated(kernel: Tensor, dilation: tuple[int, ...]) -> Tensor:
    """Return the kernel with zeros between its taps, whose plain convolution is the dilated one."""
    c_out, c_in, kh, kw = kernel.shape
    sparse = kernel.new_zeros(c_out, c_in, (kh - 1) * dilation[0] + 1, (kw - 1) * dilation[1] + 1)
    sparse[:, :, :: dilation[0], :: dilation[1]] = kernel
    return sparse


def _linear(module: nn.Module, shape: tuple[int, ...]) -> Bound:
    assert isinstance(module, nn.Linear)
    return Bound(largest_singular_value(module.weight.detach().double().cpu()), _OF_WEIGHTS)


def _batch_norm(module: nn.Module, shape: tuple[int, ...]) -> Bound:
    assert isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d))
    if module.running_var is None or module.training:
        return Bound(None, "divides by the deviation of its own batch")
    scale = (module.running_var.double() + module.eps).rsqrt()
    if module.weight is not None:
        scale = scale * module.weight.detach().double().abs()
    return Bound(up(float(scale.max()) * (1 + gamma(8))), "largest scale over running deviation")


def _pool(module: nn.Module, shape: tuple[int, ...]) -> Bound:
    assert isinstance(module, (nn.MaxPool2d, nn.AvgPool2d))
    window, stride = _pair(module.kernel_size), _pair(module.stride)
    if isinstance(module, nn.MaxPool2d) and _pair(module.dilation) != (1, 1):
        return Bound(None, "a dilated pool is not bounded")
    # A number lies in so many windows at most; a mean over a window has the norm one over the root of its size.
    overlaps = math.prod(math.ceil(w / s) for w, s in zip(window, stride, strict=True))
    size = 1
    if isinstance(module, nn.AvgPool2d):
        if module.divisor_override is not None or not module.count_include_pad or module.ceil_mode:
            return Bound(None, "only means over whole windows are bounded")
        size = math.prod(window)
    return Bound(up(math.sqrt(overlaps / size)), _BY_DEFINITION)


def _adaptive_pool(module: nn.Module, shape: tuple[int, ...]) -> Bound:
    assert isinstance(module, (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d))
    with torch.no_grad():
        wanted = tuple(module(torch.zeros(1, *shape)).shape[2:])
    if any(size % part for size, part in zip(shape[1:], wanted, strict=True)):
        return Bound(None, "only windows that divide the image are bounded")
    window = math.prod(shape[1:]) // math.prod(wanted)
    return Bound(up(math.sqrt(1 / window)) if isinstance(module, nn.AdaptiveAvgPool2d) else 1.0, _BY_DEFINITION)


def _dropout(module: nn.Module, shape: tuple[int, ...]) -> Bound:
    if module.training:
        return Bound(None, "drops at random in evaluation too")
    return Bound(1.0, "does nothing in evaluation")


def _softplus(module: nn.Module, shape: tuple[int, ...]) -> Bound:
    assert isinstance(module, nn.Softplus)
    if module.threshold < _SMOOTH_THRESHOLD:
        return Bound(None, f"jumps where it becomes linear; a threshold of {_SMOOTH_THRESHOLD} would hide it")
    return Bound(1.0, _BY_DEFINITION)


def _leaky(module: nn.Module, shape: tuple[int, ...]) -> Bound:
    assert isinstance(module, nn.LeakyReLU)
    return Bound(_slope(module.negative_slope), _BY_DEFINITION)


def _prelu(module: nn.Module, shape: tuple[int, ...]) -> Bound:
    assert isinstance(module, nn.PReLU)
    return Bound(_slope(float(module.weight.detach().abs().max())), "largest slope")


def _elu(module: nn.Module, shape: tuple[int, ...]) -> Bound:
    assert isinstance(module, nn.ELU)
    return Bound(_slope(module.alpha), _BY_DEFINITION)


def _slope(other: float) -> float:
    """Return the larger of one and the slope on the other side of zero."""
    if not math.isfinite(other):
        raise BronetError(f"a slope must be finite to be bounded, got {other}")
    return max(1.0, abs(other))


def _pair(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else tuple(value)


_RULES: dict[type[nn.Module], Callable[[nn.Module, tuple[int, ...]], Bound]] = {
    nn.Conv2d: _convolution,
    nn.Linear: _linear,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.MaxPool2d: _pool,
    nn.AvgPool2d: _pool,
    nn.AdaptiveAvgPool2d: _adaptive_pool,
    nn.AdaptiveMaxPool2d: _adaptive_pool,
    **dict.fromkeys((nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout), _dropout),
    nn.Softplus: _softplus,
    nn.LeakyReLU: _leaky,
    nn.PReLU: _prelu,
    nn.ELU: _elu,
}
