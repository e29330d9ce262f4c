"""Rules of products with constants, shifts, sums and means."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bronet.graph.operations import BY_DEFINITION, Apply, NoRuleError, Size, Value, axes_of, pair_of, rule_of
from bronet.layers.head import upper_gaps
from bronet.proof.proved_map import Product, ProvedMap, arithmetic, gamma, linear_map, shifted, up
from bronet.proof.proved_map import shift as shift_map
from bronet.proof.spectral import absolute_convolution_norm, convolution_norm, product_with

PRODUCT = "multiplies activations by activations"
_OF_WEIGHTS = "norm of these weights"


@rule_of("linear")
def linear(out: Value, input: Value, weight: Tensor, bias: Tensor | None = None) -> ProvedMap:
    """x W' + b on the last axis; the gaps of its differences where they are the logits."""
    if weight.is_complex():
        raise NoRuleError("complex weights are not bounded")
    weight = weight.detach().double().clone()
    plain = linear_map(lambda x: x @ weight.mT, out.shape, [product_with(weight)], remark=_OF_WEIGHTS)
    are_logits = out.is_last and len(out.shape) == 1
    return replace(_biased(plain, bias), gaps=upper_gaps(weight) if are_logits else None)


@rule_of("matmul", "mm")
def matmul(out: Value, input: Any, other: Any) -> ProvedMap:
    if isinstance(input, Value) and isinstance(other, Value):
        raise NoRuleError(f"{PRODUCT}, as attention does; missing is an attention with bounded scores and values")
    if not isinstance(input, Value) or not isinstance(other, Tensor) or other.ndim != 2:
        raise NoRuleError("only products with a constant matrix on the right are bounded")
    return linear(out, input, other.mT)


def _biased(plain: ProvedMap, bias: Tensor | None, axis: int = -1) -> ProvedMap:
    """Return a linear map with a bias along an axis of its output, counted from the end."""
    if bias is None:
        return plain
    return shifted(plain, bias.detach().double().clone().view(-1, *(1 for _ in range(-1 - axis))))


@rule_of("conv2d")
def conv2d(
    out: Value,
    input: Value,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> ProvedMap:
    """A zero-padded convolution, computed as one product of the kernel with patches."""
    if len(input.shape) != 3 or weight.is_complex():
        raise NoRuleError("only convolutions of real images are bounded")
    steps, dilations, taps = pair_of(stride), pair_of(dilation), tuple(weight.shape[2:])
    if padding == "same":
        spans = [d * (k - 1) for k, d in zip(reversed(taps), reversed(dilations), strict=True)]
        sides = [side for span in spans for side in (span // 2, span - span // 2)]
    else:
        sides = [side for side in reversed(pair_of(0 if isinstance(padding, str) else padding)) for _ in range(2)]
    # Zeros that differ from side to side are a step of their own, which moves numbers; of outputs some are left out
    # where strides differ.
    before, side = ([0] * 4, sides[0]) if len({*sides}) == 1 else (sides, 0)
    size = (input.shape[1] + sum(before[2:]), input.shape[2] + sum(before[:2]))
    kernel = weight.detach().double().clone()
    sparse = [_dilated(part, dilations).cpu() for part in kernel.chunk(groups)]
    # The convolution of each group stands alone: the norm of all is the largest of theirs.
    norm = max(convolution_norm(part, size, stride=math.gcd(*steps), padding=side) for part in sparse)
    product = Product(norm, max(absolute_convolution_norm(part) for part in sparse), kernel[0].numel())
    flat = kernel.flatten(1).unflatten(0, (groups, -1))  # g c_out/g c_in/g*k*k
    image = out.shape[1:]

    def apply(x: Tensor) -> Tensor:
        patches = F.unfold(F.pad(x, before), taps, dilation=dilations, padding=side, stride=steps)
        product = flat @ patches.unflatten(1, (groups, -1))
        return product.flatten(1, 2).unflatten(-1, image)

    return _biased(linear_map(apply, out.shape, [product], remark=_OF_WEIGHTS), bias, axis=-3)


@rule_of("conv_transpose2d")
def conv_transpose2d(
    out: Value,
    input: Value,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> ProvedMap:
    """The adjoint of a zero-padded convolution, which has its norm, computed as one product whose patches are added."""
    steps, sides, dilations, taps = pair_of(stride), pair_of(padding), pair_of(dilation), tuple(weight.shape[2:])
    if steps[0] != steps[1] or sides[0] != sides[1] or len(input.shape) != 3 or weight.is_complex():
        raise NoRuleError("only strides and zeros that are the same on all sides of real images are bounded")
    kernel, size = weight.detach().double().clone(), (out.shape[1], out.shape[2])
    sparse = [_dilated(part, dilations).cpu() for part in kernel.chunk(groups)]
    norm = max(convolution_norm(part, size, stride=steps[0], padding=sides[0]) for part in sparse)
    # A sum over channels for every tap, then one over the taps that meet in a pixel.
    length = kernel.shape[0] // groups + math.prod(taps)
    product = Product(norm, max(absolute_convolution_norm(part) for part in sparse), length)
    flat = kernel.flatten(1).unflatten(0, (groups, -1)).mT  # g c_out/g*k*k c_in/g

    def apply(x: Tensor) -> Tensor:
        patches = (flat @ x.flatten(2).unflatten(1, (groups, -1))).flatten(1, 2)
        return F.fold(patches, size, taps, dilation=dilations, padding=sides, stride=steps)

    return _biased(linear_map(apply, out.shape, [product], remark=_OF_WEIGHTS), bias, axis=-3)


def _dilated(kernel: Tensor, dilation: tuple[int, int]) -> Tensor:
    """Return the kernel with zeros between its taps, whose plain convolution is the dilated one."""
    c_out, c_in, kh, kw = kernel.shape
    sparse = kernel.new_zeros(c_out, c_in, (kh - 1) * dilation[0] + 1, (kw - 1) * dilation[1] + 1)
    sparse[:, :, :: dilation[0], :: dilation[1]] = kernel
    return sparse


# Scales and shifts, number by number.


def _scaled(scale: Tensor, shift: Tensor, x: Value, *, remark: str = BY_DEFINITION) -> ProvedMap:
    """Return x -> x scale + shift, both of them constants that broadcast to the shape of one image's activations."""
    scale, constant = (t.detach().double().clone() for t in (scale, shift))
    if not bool((scale != 1).any()):
        return shift_map(constant, x.shape, "a shift")
    norm = up(float(scale.abs().max()))
    scaled = ProvedMap(lambda x: x * scale, x.shape, norm, up(gamma(1) * norm), arithmetic().underflow, remark)
    return shifted(scaled, constant) if bool((constant != 0).any()) else scaled


@rule_of("batch_norm")
def batch_norm(
    out: Value,
    input: Value,
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
    return _scaled(scale.view(column), shift.view(column), input, remark="largest scale over running deviation")


@rule_of("mul", "multiply")
def multiply(out: Value, a: Any, b: Any) -> ProvedMap:
    if isinstance(a, Value) and isinstance(b, Value):
        raise NoRuleError(f"{PRODUCT}, and has no bound")
    x, constant = (a, b) if isinstance(a, Value) else (b, a)
    scale = _constant(constant, x)
    return _scaled(scale, scale.new_zeros(()), x)


@rule_of("truediv", "div", "divide")
def divide(out: Value, a: Any, b: Any, *, rounding_mode: str | None = None) -> ProvedMap:
    if not isinstance(a, Value) or isinstance(b, Value) or rounding_mode is not None:
        raise NoRuleError("only a division by a constant has a bound")
    return multiply(out, a, 1 / _constant(b, a))


@rule_of("neg", "negative")
def negative(out: Value, input: Value) -> ProvedMap:
    return ProvedMap(lambda x: -x, input.shape, 1.0, remark=BY_DEFINITION)


def _constant(value: Any, x: Value) -> Tensor:
    """Return a constant of one image's activations, which it must not make larger nor have batches of its own."""
    if isinstance(value, Tensor) and value.is_complex():
        raise NoRuleError("complex constants are not bounded")
    tensor = value.double() if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)
    if tensor.ndim > len(x.shape) and tensor.shape[0] == 1:
        tensor = tensor[0]
    if tensor.ndim > len(x.shape) or torch.broadcast_shapes(tensor.shape, x.shape) != x.shape:
        raise NoRuleError(f"a constant of shape {tuple(tensor.shape)} makes activations of shape {x.shape} larger")
    return tensor


# Sums.


@rule_of("add")
def add(out: Value, input: Any, other: Any) -> ProvedMap:
    if isinstance(input, Value) and isinstance(other, Value):
        return _sum(lambda x, y: x + y, out, input, other)
    x, constant = (input, other) if isinstance(input, Value) else (other, input)
    shift = _constant(constant, x)
    return _scaled(shift.new_ones(()), shift, x)


@rule_of("sub", "subtract")
def subtract(out: Value, input: Any, other: Any) -> ProvedMap:
    if isinstance(input, Value) and isinstance(other, Value):
        return _sum(lambda x, y: x - y, out, input, other)
    if isinstance(input, Value):
        return add(out, input, -_constant(other, input))
    shift = _constant(input, other)
    return _scaled(-shift.new_ones(()), shift, other)


def _sum(apply: Apply, out: Value, a: Value, b: Value) -> ProvedMap:
    if len(a.shape) != len(b.shape):  # the batch of one would be laid along an axis of the other
        raise NoRuleError("images of a batch must not influence one another: only as many axes can be added")
    lost = arithmetic().underflow
    plain = ProvedMap(apply, out.shape, 1.0, gamma(1), lost, "sum of its inputs' constants")
    # One that is repeated along axes of size one has its distances stretched by a root.
    factor = up(math.sqrt(max(math.prod(out.shape) / math.prod(x.shape) for x in (a, b))))
    return plain if a.shape == b.shape else replace(plain, lipschitz=factor, gain=up(plain.gain * factor))


@rule_of("sum")
def summed(
    out: Value, input: Value, dim: Size | None = None, keepdim: bool = False, *, is_mean: bool = False
) -> ProvedMap:
    axes = axes_of(dim, input)
    dims, count = [axis + 1 for axis in axes], math.prod(input.shape[axis] for axis in axes)
    divisor = count if is_mean else 1
    norm = math.sqrt(count) / divisor
    # count - 1 additions, and a division that some devices compute as a product: the norm of |A| is that of A.
    apply: Apply = lambda x: x.sum(dims, keepdim=keepdim) / divisor  # noqa: E731
    return ProvedMap(apply, out.shape, up(norm), up(gamma(count + 1) * norm), arithmetic().underflow, BY_DEFINITION)


mean = rule_of("mean")(partial(summed, is_mean=True))


@rule_of("log_softmax")
def log_softmax(out: Value, input: Value, *_: object, **__: object) -> ProvedMap:
    """Known by name: at the end of a classifier it changes no difference of logits."""
    raise NoRuleError("a log_softmax is bounded only as the last operation, where it changes no difference of logits")
