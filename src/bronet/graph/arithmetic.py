"""Rules of products with constants, shifts, scales and sums: the names and arguments are those of torch's functions."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bronet.graph import maps
from bronet.graph.maps import BY_DEFINITION, Apply
from bronet.graph.operands import Input, NoRuleError, Output, Rule, axes_of, pair_of
from bronet.proof.proved_map import ProvedMap
from bronet.proof.rounding import up


def linear(out: Output, input: Input, weight: Tensor, bias: Tensor | None = None) -> ProvedMap:
    if weight.is_complex():
        raise NoRuleError("complex weights are not bounded")
    return maps.matrix(weight, bias, input.shape, with_gaps=out.is_last and len(out.shape) == 1)


def matmul(out: Output, input: Input, other: Tensor) -> ProvedMap:
    if not isinstance(input, Input) or not isinstance(other, Tensor) or other.ndim != 2:
        raise NoRuleError("only products with a constant matrix on the right are bounded")
    return linear(out, input, other.mT)


def conv2d(
    out: Output,
    input: Input,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> ProvedMap:
    steps, dilations = pair_of(stride), pair_of(dilation)
    if padding == "same":
        sides = [side for k, d in zip(weight.shape[2:], dilations, strict=True) for side in _same(k, d)]
    else:
        sides = [side for side in pair_of(0 if isinstance(padding, str) else padding) for _ in range(2)]
    if len({*sides}) > 1 or len({*steps}) > 1 or len(input.shape) != 3 or weight.is_complex():
        raise NoRuleError("only strides and zeros that are the same on all sides of real images are bounded")
    return maps.convolution(
        weight, bias, input.shape, stride=steps[0], padding=sides[0], dilation=dilations, groups=groups
    )


def _same(taps: int, dilation: int) -> tuple[int, int]:
    total = dilation * (taps - 1)
    return total // 2, total - total // 2


def batch_norm(
    out: Output,
    input: Input,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> ProvedMap:
    if running_mean is None or running_var is None or training:
        raise NoRuleError("divides by the deviation of its own batch")
    scale = (running_var.double() + eps).rsqrt() * (1.0 if weight is None else weight.double())
    shift = (0.0 if bias is None else bias.double()) - running_mean.double() * scale
    column = (-1, *(1 for _ in input.shape[1:]))
    remark = "largest scale over running deviation"
    return maps.scaled(scale.view(column), shift.view(column), input.shape, remark=remark)


def add(out: Output, input: Any, other: Any, *, alpha: float = 1) -> ProvedMap:
    if alpha != 1:
        raise NoRuleError("a factor alpha of an addition is not bounded; multiply before")
    return _sum_of(out, input, other, subtracts=False)


def subtract(out: Output, input: Any, other: Any, *, alpha: float = 1) -> ProvedMap:
    if alpha != 1:
        raise NoRuleError("a factor alpha of a subtraction is not bounded; multiply before")
    return _sum_of(out, input, other, subtracts=True)


def _sum_of(out: Output, a: Any, b: Any, *, subtracts: bool) -> ProvedMap:
    if isinstance(a, Input) and isinstance(b, Input):
        if a.shape == b.shape:
            return maps.added(a.shape, subtracts=subtracts)
        return _broadcast_sum(out, a, b, subtracts=subtracts)
    x, constant, first = (a, b, True) if isinstance(a, Input) else (b, a, False)
    value = _constant(constant, x)
    one = torch.ones((), dtype=torch.float64, device=value.device)
    if not subtracts:
        return maps.scaled(one, value, x.shape)
    return maps.scaled(one, -value, x.shape) if first else maps.scaled(-one, value, x.shape)


def _broadcast_sum(out: Output, a: Input, b: Input, *, subtracts: bool) -> ProvedMap:
    """Return x + y or x - y where one is repeated along axes of size one, which stretches distances by a root."""
    times = max(math.prod(out.shape) / math.prod(x.shape) for x in (a, b))
    plain = maps.added(out.shape, subtracts=subtracts)
    factor = up(math.sqrt(times))
    return ProvedMap(plain.apply, out.shape, factor, up(plain.gain * factor), plain.offset, plain.remark)


def _constant(value: Any, x: Input) -> Tensor:
    """Return a constant of one image's activations, which it must not make larger nor have batches of its own."""
    tensor = value.double() if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)
    if tensor.ndim > len(x.shape) and tensor.shape[0] == 1:
        tensor = tensor[0]
    if tensor.ndim > len(x.shape) or torch.broadcast_shapes(tensor.shape, x.shape) != x.shape:
        raise NoRuleError(f"a constant of shape {tuple(tensor.shape)} makes activations of shape {x.shape} larger")
    return tensor


def multiply(out: Output, a: Any, b: Any) -> ProvedMap:
    if isinstance(a, Input) and isinstance(b, Input):
        raise NoRuleError("a product of two activations has no bound")
    x, constant = (a, b) if isinstance(a, Input) else (b, a)
    scale = _constant(constant, x)
    return maps.scaled(scale, torch.zeros((), dtype=torch.float64, device=scale.device), x.shape)


def divide(out: Output, a: Any, b: Any, *, rounding_mode: str | None = None) -> ProvedMap:
    if not isinstance(a, Input) or isinstance(b, Input) or rounding_mode is not None:
        raise NoRuleError("only a division by a constant has a bound")
    return multiply(out, a, 1 / _constant(b, a))


def negative(out: Output, input: Input) -> ProvedMap:
    return maps.elementwise(lambda x: -x, input.shape, 1.0, roundings=0, remark=BY_DEFINITION)


def mean(
    out: Output, input: Input, dim: int | Sequence[int] | None = None, keepdim: bool = False, dtype: None = None
) -> ProvedMap:
    return maps.summed(input.shape, axes_of(dim, input), keepdim=keepdim, mean=True)


def total(
    out: Output, input: Input, dim: int | Sequence[int] | None = None, keepdim: bool = False, dtype: None = None
) -> ProvedMap:
    return maps.summed(input.shape, axes_of(dim, input), keepdim=keepdim, mean=False)


def amax(out: Output, input: Input, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> ProvedMap:
    return maps.largest(input.shape, axes_of(dim, input), keepdim=keepdim)


def vector_norm(
    out: Output, x: Input, ord: float = 2, dim: int | Sequence[int] | None = None, keepdim: bool = False
) -> ProvedMap:
    if ord != 2:
        raise NoRuleError(f"only the l2 norm is bounded, not that of order {ord}")
    return maps.normed(x.shape, axes_of(dim, x), keepdim=keepdim)


def compared(function: Apply) -> Rule:
    def rule(out: Output, input: Input, other: Input) -> ProvedMap:
        if not (isinstance(input, Input) and isinstance(other, Input) and input.shape == other.shape):
            raise NoRuleError("only two activations of one shape are compared; clamp by a constant")
        return replace(maps.moved(function, input.shape, inputs=2), remark=BY_DEFINITION)

    return rule
