"""Rules of functions of every number, of maxima and norms, and of means over windows and changes of size."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from bronet.errors import BronetError
from bronet.graph.operations import (
    BY_DEFINITION,
    RULES,
    UNKNOWN,
    Apply,
    Input,
    NoRuleError,
    Output,
    Rule,
    Shape,
    axes_of,
    pair_of,
    rule_of,
)
from bronet.proof.proved_map import Join, Product, ProvedMap, arithmetic, exact, gamma, linear, norm_of_products, up
from bronet.proof.spectral import absolute_norm, largest_singular_value

# Each slope is the largest, rounded up in the last digit (tests/graph/test_checking.py measures them).
SLOPES: dict[str, tuple[float, Apply]] = {
    "tanh": (1.0, torch.tanh),
    "sigmoid": (0.25, torch.sigmoid),
    "gelu": (1.13, F.gelu),
    "silu": (1.1, F.silu),
    "mish": (1.09, F.mish),
    "selu": (1.7581, F.selu),
}
# Where softplus becomes linear it jumps by log(1 + exp(-threshold)); from here on by less than float64 can show.
_SMOOTH_THRESHOLD = 40


def elementwise(
    apply: Apply, x: Input, slope: float = 1.0, *, roundings: int | None = None, remark: str = BY_DEFINITION
) -> ProvedMap:
    """Return the map of a function of every number, with f(0) = 0 up to what rounding is relative to the argument.

    `roundings` counts those of a result no larger than `slope` times the argument; None where they are not known.
    """
    if not math.isfinite(slope):
        raise BronetError(f"a slope must be finite to be bounded, got {slope}")
    if roundings is None:
        return ProvedMap(apply, x.shape, slope, UNKNOWN, remark=f"{remark}; how its library rounds is not known")
    gain = up(gamma(roundings) * slope) if roundings else 0.0
    return ProvedMap(apply, x.shape, slope, gain, arithmetic().underflow if roundings else 0.0, remark)


def exactly(function: Apply) -> Rule:
    """Return the rule of a function that computes without rounding, of slope one."""
    return lambda out, input, inplace=False: elementwise(function, input, roundings=0)


def _by_slope(slope: float, function: Apply) -> Rule:
    """Return the rule of a function of which the largest slope is known."""
    return lambda out, input, inplace=False: elementwise(function, input, slope)


for _name, (_slope, _smooth) in SLOPES.items():
    rule_of(_name)(_by_slope(_slope, _smooth))
rule_of("relu")(exactly(F.relu))
rule_of("relu6")(exactly(F.relu6))
rule_of("abs")(exactly(torch.abs))


@rule_of("gelu")
def gelu(out: Output, input: Input, approximate: str = "none") -> ProvedMap:
    return elementwise(lambda x: F.gelu(x, approximate=approximate), input, SLOPES["gelu"][0])


@rule_of("leaky_relu")
def leaky(out: Output, input: Input, negative_slope: float = 0.01, inplace: bool = False) -> ProvedMap:
    slope = float(negative_slope)
    return elementwise(lambda x: torch.where(x > 0, x, slope * x), input, _steepest(slope), roundings=1)


@rule_of("prelu")
def prelu(out: Output, input: Input, weight: Tensor) -> ProvedMap:
    slopes = weight.detach().double().clone()
    slopes = slopes.view(-1, *(1 for _ in input.shape[1:])) if slopes.numel() > 1 else slopes
    steepest = _steepest(float(slopes.abs().max()))
    return elementwise(
        lambda x: torch.where(x > 0, x, slopes * x), input, steepest, roundings=1, remark="largest slope"
    )


def _steepest(slope: float) -> float:
    """Return the larger of one and the slope on the other side of zero."""
    return max(1.0, abs(slope)) if math.isfinite(slope) else math.nan


@rule_of("elu")
def elu(out: Output, input: Input, alpha: float = 1.0, inplace: bool = False) -> ProvedMap:
    return elementwise(lambda x: F.elu(x, alpha=alpha), input, _steepest(alpha))


@rule_of("celu")
def celu(out: Output, input: Input, alpha: float = 1.0, inplace: bool = False) -> ProvedMap:
    return elementwise(lambda x: F.celu(x, alpha=alpha), input)


@rule_of("hardtanh")
def hardtanh(
    out: Output, input: Input, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> ProvedMap:
    return clamp(out, input, min_val, max_val)


@rule_of("clamp", "clip")
def clamp(out: Output, input: Input, min: float | None = None, max: float | None = None) -> ProvedMap:
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


@rule_of("hardswish")
def hardswish(out: Output, input: Input, inplace: bool = False) -> ProvedMap:
    return elementwise(lambda x: x * (x + 3).clamp(0, 6) / 6, input, 1.5, roundings=4)


@rule_of("softplus")
def softplus(out: Output, input: Input, beta: float = 1.0, threshold: float = 20.0) -> ProvedMap:
    if threshold < _SMOOTH_THRESHOLD:
        raise NoRuleError(f"jumps where it becomes linear; a threshold of {_SMOOTH_THRESHOLD} would hide it")
    return elementwise(lambda x: F.softplus(x, beta, threshold), input)


def _compared(function: Apply) -> Rule:
    """Return the rule of the larger or the smaller of two numbers."""

    def rule(out: Output, input: Input, other: Input) -> ProvedMap:
        if not (isinstance(input, Input) and isinstance(other, Input) and input.shape == other.shape):
            raise NoRuleError("only two activations of one shape are compared; clamp by a constant")
        return replace(exact(function, input.shape), join=Join.ROOT_OF_SQUARES, remark=BY_DEFINITION)

    return rule


rule_of("maximum")(_compared(torch.maximum))
rule_of("minimum")(_compared(torch.minimum))


@rule_of("amax")
def amax(out: Output, input: Input, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> ProvedMap:
    dims = [axis + 1 for axis in axes_of(dim, input)]
    return ProvedMap(lambda x: x.amax(dims, keepdim=keepdim), out.shape, 1.0, remark=BY_DEFINITION)


@rule_of("vector_norm")
def vector_norm(
    out: Output, x: Input, ord: float = 2, dim: int | Sequence[int] | None = None, keepdim: bool = False
) -> ProvedMap:
    """The l2 norm, 1-Lipschitz by the triangle inequality."""
    if ord != 2:
        raise NoRuleError(f"only the l2 norm is bounded, not that of order {ord}")
    axes = axes_of(dim, x)
    dims, count = [axis + 1 for axis in axes], math.prod(x.shape[axis] for axis in axes)
    apply: Apply = lambda x: torch.linalg.vector_norm(x, dim=dims, keepdim=keepdim)  # noqa: E731
    return ProvedMap(apply, out.shape, 1.0, gamma(count + 2), arithmetic().norm_underflow, BY_DEFINITION)


@rule_of("max_pool2d")
def max_pool2d(
    out: Output,
    input: Input,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> ProvedMap:
    sizes, steps = pair_of(kernel_size), pair_of(kernel_size if stride is None else stride)
    sides, gaps = pair_of(padding), pair_of(dilation)
    overlaps = 1
    for n, windows, k, s, p, d in zip(input.shape[-2:], out.shape[-2:], sizes, steps, sides, gaps, strict=True):
        seen = torch.arange(windows)[:, None] * s - p + torch.arange(k)[None] * d
        overlaps *= max(1, int(seen[(seen >= 0) & (seen < n)].bincount().max()))
    return _windows(lambda x: F.max_pool2d(x, sizes, steps, sides, gaps, ceil_mode), out.shape, overlaps)


@rule_of("adaptive_max_pool2d")
def adaptive_max_pool2d(out: Output, input: Input, output_size: object, return_indices: bool = False) -> ProvedMap:
    sizes, overlaps = (out.shape[-2], out.shape[-1]), 1
    for n, m in zip(input.shape[-2:], sizes, strict=True):
        spans = [range(i * n // m, -(-(i + 1) * n // m)) for i in range(m)]
        overlaps *= max(sum(position in span for span in spans) for position in range(n))
    return _windows(lambda x: F.adaptive_max_pool2d(x, sizes), out.shape, overlaps)


def _windows(apply: Apply, output: Shape, overlaps: int) -> ProvedMap:
    """Return the largest number of every window, where one number lies in `overlaps` windows at most."""
    return ProvedMap(apply, output, 1.0 if overlaps == 1 else up(math.sqrt(overlaps)), remark=BY_DEFINITION)


# Means over windows and changes of size: R x C' on every channel. What they do to unit vectors gives R and C.


def _units(n: int) -> Tensor:
    return torch.eye(n, dtype=torch.float64)[:, None]


@rule_of("avg_pool2d")
def avg_pool2d(
    out: Output,
    input: Input,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> ProvedMap:
    if divisor_override is not None:
        raise NoRuleError("only means over whole windows are bounded")
    sizes, steps, sides = pair_of(kernel_size), pair_of(kernel_size if stride is None else stride), pair_of(padding)
    means = [
        F.avg_pool1d(_units(n), k, s, p, ceil_mode, count_include_pad)
        for n, k, s, p in zip(input.shape[-2:], sizes, steps, sides, strict=True)
    ]
    return _along_axes(means, out)


@rule_of("adaptive_avg_pool2d")
def adaptive_avg_pool2d(out: Output, input: Input, output_size: object) -> ProvedMap:
    sizes = zip(input.shape[-2:], out.shape[-2:], strict=True)
    return _along_axes([F.adaptive_avg_pool1d(_units(n), m) for n, m in sizes], out)


@rule_of("interpolate")
def interpolate(
    out: Output,
    input: Input,
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
    kind, sizes = mode.replace("bilinear", "linear"), zip(input.shape[-2:], out.shape[-2:], strict=True)
    return _along_axes([F.interpolate(_units(n), m, mode=kind, align_corners=align_corners) for n, m in sizes], out)


def _along_axes(images_of_units: Sequence[Tensor], out: Output) -> ProvedMap:
    R, C = (images[:, 0].mT.clone() for images in images_of_units)
    products = [Product(largest_singular_value(t), absolute_norm(t), t.shape[1]) for t in (C, R)]
    return linear(lambda x: R @ (x @ C.mT), out.shape, products, norm_of_products(products), BY_DEFINITION)


@rule_of("layer_norm", "group_norm", "instance_norm", "local_response_norm", "rms_norm")
def divides(out: Output, input: Input, *_: object, **__: object) -> ProvedMap:
    raise NoRuleError("divides by a deviation of its own input, which may be as small as it likes")


_ACTIVATIONS = (*SLOPES, "relu", "relu6", "leaky_relu", "prelu", "elu", "celu", "hardtanh", "hardswish", "softplus")
ACTIVATIONS = {RULES[name] for name in _ACTIVATIONS}
"""Rules of functions between the layers of a network."""
