"""Rules of functions of every number, of maxima and norms, and of means over windows and changes of size."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bronet.errors import BronetError
from bronet.graph.operations import BY_DEFINITION, Apply, NoRuleError, Rule, Size, Value, axes_of, pair_of, rule_of
from bronet.proof.proved_map import Join, ProvedMap, arithmetic, exact, gamma, linear_map, up
from bronet.proof.spectral import product_with

# Where softplus becomes linear it jumps by log(1 + exp(-threshold)); from here on by less than float64 can show.
_SMOOTH_THRESHOLD = 40


def elementwise(
    apply: Apply, x: Value, slope: float = 1.0, *, roundings: int | None = None, remark: str = BY_DEFINITION
) -> ProvedMap:
    """Return the map of a function of every number, with f(0) = 0 up to what rounding is relative to the argument.

    `roundings` counts those of a result no larger than `slope` times the argument; None where they are not known.
    """
    if not math.isfinite(slope):
        raise BronetError(f"a slope must be finite to be bounded, got {slope}")
    if roundings is None:
        return ProvedMap(apply, x.shape, slope, math.inf, remark=f"{remark}; how its library rounds is not known")
    gain = up(gamma(roundings) * slope) if roundings else 0.0
    return ProvedMap(apply, x.shape, slope, gain, arithmetic().underflow if roundings else 0.0, remark)


def _steepest(slope: float) -> float:
    """Return the larger of one and the slope on the other side of zero."""
    return max(1.0, abs(float(slope))) if math.isfinite(slope) else math.nan


def _leaky(x: Tensor, negative_slope: float | Tensor = 0.01) -> Tensor:
    return torch.where(x > 0, x, negative_slope * x)


def _of_softplus(beta: float = 1.0, threshold: float = 20.0) -> float:
    if threshold < _SMOOTH_THRESHOLD:
        raise NoRuleError(f"jumps where it becomes linear; a threshold of {_SMOOTH_THRESHOLD} would hide it")
    return 1.0


def _of_celu(alpha: float = 1.0) -> float:
    if not alpha > 0:
        raise NoRuleError(f"grows exponentially unless alpha is positive, got {alpha}")
    return 1.0


_FUNCTIONS: dict[str, tuple[Apply, float | Callable[..., float], int | None]] = {
    "relu": (F.relu, 1.0, 0),
    "relu6": (F.relu6, 1.0, 0),
    "leaky_relu": (_leaky, lambda negative_slope=0.01: _steepest(negative_slope), 1),
    "hardswish": (lambda x: x * (x + 3).clamp(0, 6) / 6, 1.5, 4),
    "tanh": (torch.tanh, 1.0, None),
    "sigmoid": (torch.sigmoid, 0.25, None),
    "gelu": (F.gelu, 1.13, None),
    "silu": (F.silu, 1.1, None),
    "mish": (F.mish, 1.09, None),
    "selu": (F.selu, 1.7581, None),
    "elu": (F.elu, lambda alpha=1.0: _steepest(alpha), None),
    "celu": (F.celu, _of_celu, None),
    "softplus": (F.softplus, _of_softplus, None),
}
"""Functions of every number: their largest slope, rounded up in the last digit, and how often they round.

A slope that depends on the function's own settings is a function of those (tests/graph/test_checking.py measures all).
"""


def _by_slope(function: Apply, slope: float | Callable[..., float], roundings: int | None) -> Rule:
    def rule(out: Value, input: Value, *settings: Any, **named: Any) -> ProvedMap:
        own = [value for value in settings if not isinstance(value, bool)]  # a word of truth says: in place
        steepest = slope(*own, **named) if callable(slope) else slope
        return elementwise(lambda x: function(x, *own, **named), input, steepest, roundings=roundings)

    return rule


ACTIVATIONS = {rule_of(name)(_by_slope(*entry)) for name, entry in _FUNCTIONS.items()}
"""Rules of functions between the layers of a network."""
rule_of("abs")(_by_slope(torch.abs, 1.0, 0))


@rule_of("prelu")
def prelu(out: Value, input: Value, weight: Tensor) -> ProvedMap:
    slopes = weight.detach().double().clone()
    slopes = slopes.view(-1, *(1 for _ in input.shape[1:])) if slopes.numel() > 1 else slopes
    steepest = _steepest(float(slopes.abs().max()))
    return elementwise(lambda x: _leaky(x, slopes), input, steepest, roundings=1, remark="largest slope")


@rule_of("clamp", "clip")
def clamp(out: Value, input: Value, min: float | None = None, max: float | None = None) -> ProvedMap:
    low, high = (None if bound is None else float(bound) for bound in (min, max))
    # Limits that the arithmetic of the program rounds move results by their own rounding.
    limits = [abs(bound) for bound in (low, high) if bound is not None and math.isfinite(bound)]
    offset = up(gamma(0) * sum(limits) * math.sqrt(math.prod(input.shape)))
    # Tensors: an exported file holds plain numbers with seven digits.
    least, most = (None if bound is None else torch.tensor(bound, dtype=torch.float64) for bound in (low, high))

    def limited(x: Tensor) -> Tensor:  # by functions that take such a tensor from a CPU on any device
        above = x if least is None else torch.maximum(x, least)
        return above if most is None else torch.minimum(above, most)

    return replace(elementwise(limited, input, roundings=0), offset=offset)


@rule_of("hardtanh")
def hardtanh(out: Value, input: Value, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> ProvedMap:
    return clamp(out, input, min_val, max_val)


ACTIVATIONS |= {prelu, hardtanh}


def _compared(function: Apply, out: Value, input: Value, other: Value) -> ProvedMap:
    """The larger or the smaller of two numbers."""
    if not (isinstance(input, Value) and isinstance(other, Value) and input.shape == other.shape):
        raise NoRuleError("only two activations of one shape are compared; clamp by a constant")
    return replace(exact(function, out.shape, BY_DEFINITION), join=Join.ROOT_OF_SQUARES)


rule_of("maximum")(partial(_compared, torch.maximum))
rule_of("minimum")(partial(_compared, torch.minimum))


@rule_of("amax")
def amax(out: Value, input: Value, dim: Size | None = None, keepdim: bool = False) -> ProvedMap:
    dims = [axis + 1 for axis in axes_of(dim, input)]
    return ProvedMap(lambda x: x.amax(dims, keepdim=keepdim), out.shape, 1.0, remark=BY_DEFINITION)


@rule_of("vector_norm")
def vector_norm(out: Value, x: Value, ord: float = 2, dim: Size | None = None, keepdim: bool = False) -> ProvedMap:
    """The l2 norm, 1-Lipschitz by the triangle inequality."""
    if ord != 2:
        raise NoRuleError(f"only the l2 norm is bounded, not that of order {ord}")
    axes = axes_of(dim, x)
    dims, count = [axis + 1 for axis in axes], math.prod(x.shape[axis] for axis in axes)
    apply: Apply = lambda x: torch.linalg.vector_norm(x, dim=dims, keepdim=keepdim)  # noqa: E731
    return ProvedMap(apply, out.shape, 1.0, gamma(count + 2), arithmetic().norm_underflow, BY_DEFINITION)


# Maxima and means over windows and changes of size go along one axis, then along the other: what torch's function of
# one axis makes of unit vectors shows the windows of each number, and the matrices R and C of x -> R x C'.


def _along_axes(function: Callable[..., Tensor], input: Value, sizes: Sequence[Any], **settings: Any) -> list[Tensor]:
    """Return what a function of one axis makes of the unit vectors of either, with its share of each setting."""

    def of_axis(value: Any, axis: int) -> Any:
        return pair_of(value)[axis] if isinstance(value, (int, tuple, list)) else value

    return [
        function(
            torch.eye(n, dtype=torch.float64)[:, None],
            *(of_axis(value, axis) for value in sizes),
            **{name: of_axis(value, axis) for name, value in settings.items()},
        )[:, 0]
        for axis, n in enumerate(input.shape[-2:])
    ]


def _largest(apply: Apply, out: Value, windows: Sequence[Tensor]) -> ProvedMap:
    """Return the largest number of every window: a number may be that of all windows that it lies in."""
    overlaps = math.prod(max(1, int((units > 0).sum(-1).max())) for units in windows)
    return ProvedMap(apply, out.shape, 1.0 if overlaps == 1 else up(math.sqrt(overlaps)), remark=BY_DEFINITION)


def _separable(units: Sequence[Tensor], out: Value) -> ProvedMap:
    R, C = (images.mT.clone() for images in units)

    def apply(x: Tensor) -> Tensor:  # on whatever device its images are
        return R.to(x.device) @ (x @ C.to(x.device).mT)

    return linear_map(apply, out.shape, [product_with(C), product_with(R)], remark=BY_DEFINITION)


@rule_of("max_pool2d")
def max_pool2d(out: Value, input: Value, *sizes: Any, **settings: Any) -> ProvedMap:
    windows = _along_axes(F.max_pool1d, input, sizes, **settings)
    return _largest(lambda x: F.max_pool2d(x, *sizes, **settings), out, windows)


@rule_of("adaptive_max_pool2d")
def adaptive_max_pool2d(out: Value, input: Value, *_: Any, **__: Any) -> ProvedMap:
    sizes = out.shape[-2:]
    windows = _along_axes(F.adaptive_max_pool1d, input, [sizes])
    return _largest(lambda x: F.adaptive_max_pool2d(x, sizes), out, windows)


@rule_of("avg_pool2d")
def avg_pool2d(out: Value, input: Value, *sizes: Any, divisor_override: int | None = None, **named: Any) -> ProvedMap:
    if divisor_override is not None or any(divisor is not None for divisor in sizes[5:]):
        raise NoRuleError("only means over whole windows are bounded")
    return _separable(_along_axes(F.avg_pool1d, input, sizes[:5], **named), out)


@rule_of("adaptive_avg_pool2d")
def adaptive_avg_pool2d(out: Value, input: Value, *_: Any, **__: Any) -> ProvedMap:
    return _separable(_along_axes(F.adaptive_avg_pool1d, input, [out.shape[-2:]]), out)


@rule_of("interpolate")
def interpolate(
    out: Value,
    input: Value,
    size: object = None,
    scale_factor: object = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> ProvedMap:
    whole = isinstance(scale_factor, (int, float, type(None))) and float(scale_factor or 1).is_integer()
    if mode not in ("nearest", "bilinear") or len(input.shape) != 3 or antialias or not whole:
        raise NoRuleError("only sizes and whole factors, to the nearest or bilinear, are bounded")
    kind = mode.replace("bilinear", "linear")
    sizes = [out.shape[-2:]]
    return _separable(_along_axes(F.interpolate, input, sizes, mode=kind, align_corners=align_corners), out)


@rule_of("layer_norm", "group_norm", "instance_norm", "local_response_norm", "rms_norm")
def divides(out: Value, input: Value, over: object = None, *_: object, **__: object) -> ProvedMap:
    raise NoRuleError("divides by a deviation of its own input, which may be as small as it likes")
