"""Rules of functions of every number: the names and arguments are those of torch's functions."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bronet.graph import maps
from bronet.graph.maps import BY_DEFINITION, Apply
from bronet.graph.operands import Input, NoRuleError, Output, Rule
from bronet.proof.proved_map import ProvedMap

# Activations. Each slope is the largest, rounded up in the last digit (tests/graph/test_checking.py measures them).

SLOPES: dict[type[nn.Module], tuple[float, Apply]] = {
    nn.Tanh: (1.0, torch.tanh),
    nn.Sigmoid: (0.25, torch.sigmoid),
    nn.GELU: (1.13, F.gelu),
    nn.SiLU: (1.1, F.silu),
    nn.Mish: (1.09, F.mish),
    nn.SELU: (1.7581, F.selu),
    nn.LogSigmoid: (1.0, F.logsigmoid),
}
# Where softplus becomes linear it jumps by log(1 + exp(-threshold)); from here on by less than float64 can show.
_SMOOTH_THRESHOLD = 40


def exactly(function: Apply) -> Rule:
    return lambda out, input, inplace=False: maps.elementwise(
        function, input.shape, 1.0, roundings=0, remark=BY_DEFINITION
    )


def by_slope(slope: float, function: Apply) -> Rule:
    return lambda out, input, inplace=False: maps.elementwise(function, input.shape, slope, remark=BY_DEFINITION)


def gelu(out: Output, input: Input, approximate: str = "none") -> ProvedMap:
    slope, _ = SLOPES[nn.GELU]
    return maps.elementwise(lambda x: F.gelu(x, approximate=approximate), input.shape, slope, remark=BY_DEFINITION)


def leaky(out: Output, input: Input, negative_slope: float = 0.01, inplace: bool = False) -> ProvedMap:
    slope = float(negative_slope)
    return maps.elementwise(
        lambda x: torch.where(x > 0, x, slope * x),
        input.shape,
        _steepest(slope),
        roundings=1,
        remark=BY_DEFINITION,
    )


def prelu(out: Output, input: Input, weight: Tensor) -> ProvedMap:
    slopes = weight.detach().double().clone()
    slopes = slopes.view(-1, *(1 for _ in input.shape[1:])) if slopes.numel() > 1 else slopes
    return maps.elementwise(
        lambda x: torch.where(x > 0, x, slopes * x),
        input.shape,
        _steepest(float(slopes.abs().max())),
        roundings=1,
        remark="largest slope",
    )


def _steepest(slope: float) -> float:
    """Return the larger of one and the slope on the other side of zero."""
    return max(1.0, abs(slope)) if math.isfinite(slope) else math.nan


def elu(out: Output, input: Input, alpha: float = 1.0, inplace: bool = False) -> ProvedMap:
    return maps.elementwise(lambda x: F.elu(x, alpha=alpha), input.shape, _steepest(alpha), remark=BY_DEFINITION)


def celu(out: Output, input: Input, alpha: float = 1.0, inplace: bool = False) -> ProvedMap:
    return maps.elementwise(lambda x: F.celu(x, alpha=alpha), input.shape, 1.0, remark=BY_DEFINITION)


def hardtanh(
    out: Output, input: Input, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> ProvedMap:
    return clamp(out, input, min_val, max_val)


def clamp(out: Output, input: Input, min: float | None = None, max: float | None = None) -> ProvedMap:
    low, high = (None if bound is None else float(bound) for bound in (min, max))
    return maps.elementwise(lambda x: x.clamp(low, high), input.shape, 1.0, roundings=0, remark=BY_DEFINITION)


def hardswish(out: Output, input: Input, inplace: bool = False) -> ProvedMap:
    return maps.elementwise(lambda x: x * (x + 3).clamp(0, 6) / 6, input.shape, 1.5, roundings=4, remark=BY_DEFINITION)


def softplus(out: Output, input: Input, beta: float = 1.0, threshold: float = 20.0) -> ProvedMap:
    if threshold < _SMOOTH_THRESHOLD:
        raise NoRuleError(f"jumps where it becomes linear; a threshold of {_SMOOTH_THRESHOLD} would hide it")
    return maps.elementwise(lambda x: F.softplus(x, beta, threshold), input.shape, 1.0, remark=BY_DEFINITION)
