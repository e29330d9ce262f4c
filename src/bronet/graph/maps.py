"""Proved maps of torch's operations: products, shifts and scales, windows, moved numbers; each with its rounding.

`apply` of every map is made of operations that the standard model covers, which a library's convolution need not be.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from bronet.errors import BronetError
from bronet.layers.head import upper_gaps
from bronet.proof.convolution import absolute_convolution_norm, convolution_norm
from bronet.proof.proved_map import Join, Product, ProvedMap, exact, gain_of_products, norm_of_products
from bronet.proof.rounding import NORM_UNDERFLOW, UNDERFLOW, gamma, up
from bronet.proof.spectral import absolute_norm, largest_singular_value

Shape = tuple[int, ...]
Apply = Callable[..., Tensor]

UNKNOWN = math.inf
"""The gain of a function whose rounding is not known, or the constant of an operation without a bound."""
OF_WEIGHTS = "norm of these weights"
BY_DEFINITION = "for every input"
MOVES = "only moves numbers"


def unbounded(apply: Apply, shape: Shape, reason: str) -> ProvedMap:
    """Return the map of an operation that nothing is proved of."""
    return ProvedMap(apply, shape, UNKNOWN, UNKNOWN, remark=reason)


def moved(apply: Apply, shape: Shape, inputs: int = 1) -> ProvedMap:
    """Return the map that puts the numbers of its inputs, each once, elsewhere."""
    return replace(exact(apply, shape), join=Join.ROOT_OF_SQUARES if inputs > 1 else Join.SUM, remark=MOVES)


def copied(apply: Apply, shape: Shape, source: Shape) -> ProvedMap:
    """Return the map of an operation that selects entries, of which each may be there several times or not at all."""
    index = entries_of(apply, source)
    times = int(index[index >= 0].flatten().bincount().max()) if bool((index >= 0).any()) else 0
    return ProvedMap(apply, shape, 1.0 if times <= 1 else up(math.sqrt(times)), remark=MOVES)


def entries_of(apply: Apply, source: Shape) -> Tensor:
    """Return which flat entry of its one input every entry of the result is; -1 for a constant of zero."""
    numbers = torch.arange(1, math.prod(source) + 1, dtype=torch.float64).reshape(1, *source)
    return apply(numbers)[0].long() - 1


def elementwise(apply: Apply, shape: Shape, slope: float, *, roundings: int | None = None, remark: str) -> ProvedMap:
    """Return the map of a function of every number, with f(0) = 0 up to what rounding is relative to the argument.

    `roundings` counts those of a result no larger than `slope` times the argument; None where they are not known.
    """
    if not math.isfinite(slope):
        raise BronetError(f"a slope must be finite to be bounded, got {slope}")
    if roundings is None:
        return ProvedMap(apply, shape, slope, UNKNOWN, remark=f"{remark}; how its library rounds is not known")
    gain = gamma(roundings) * slope if roundings else 0.0
    return ProvedMap(apply, shape, slope, up(gain) if gain else 0.0, UNDERFLOW if roundings else 0.0, remark)


def scaled(scale: Tensor, shift: Tensor, shape: Shape, *, remark: str = BY_DEFINITION) -> ProvedMap:
    """Return x -> x scale + shift, both of them constants that broadcast to the shape of one image's activations."""
    scale, shift = (t.detach().double().clone() for t in (scale, shift))
    largest = float(scale.abs().max())
    size = float(torch.linalg.vector_norm(shift.expand(shape))) * (1 + gamma(math.prod(shape) + 2))
    norm = up(largest)
    is_shifted, is_scaled = bool((shift != 0).any()), bool((scale != 1).any())
    if not is_scaled:
        return ProvedMap(lambda x: x + shift, shape, 1.0, gamma(1), up(gamma(1) * size + UNDERFLOW), "a shift")
    apply = (lambda x: x * scale + shift) if is_shifted else (lambda x: x * scale)
    return ProvedMap(apply, shape, norm, up(gamma(2) * norm), up(gamma(2) * size + UNDERFLOW), remark)


def added(shape: Shape, *, subtracts: bool = False) -> ProvedMap:
    """Return x + y, or x - y."""
    apply: Apply = (lambda x, y: x - y) if subtracts else (lambda x, y: x + y)
    return ProvedMap(apply, shape, 1.0, gamma(1), UNDERFLOW, "sum of its inputs' constants")


def matrix(weight: Tensor, bias: Tensor | None, shape: Shape, *, with_gaps: bool) -> ProvedMap:
    """Return x -> x W' + b on the last axis; the gaps of its differences where they are logits."""
    weight = weight.detach().double().clone()
    norm = largest_singular_value(weight)
    gain = gain_of_products([Product(norm, absolute_norm(weight), weight.shape[1])])
    plain = ProvedMap(lambda x: x @ weight.mT, (*shape[:-1], weight.shape[0]), norm, gain, UNDERFLOW, OF_WEIGHTS)
    return replace(biased(plain, bias), gaps=upper_gaps(weight) if with_gaps else None)


def biased(plain: ProvedMap, bias: Tensor | None, axis: int = -1) -> ProvedMap:
    """Return a linear map with a bias along an axis of its output, counted from the end."""
    if bias is None:
        return plain
    column = bias.detach().double().clone().view(-1, *(1 for _ in range(-1 - axis)))
    size = float(torch.linalg.vector_norm(column.expand(plain.output_shape)))
    size *= 1 + gamma(math.prod(plain.output_shape) + 2)
    apply, gain = plain.apply, plain.gain
    return replace(
        plain,
        apply=lambda x: apply(x) + column,
        gain=up(gain + gamma(1) * (plain.lipschitz + gain)),
        offset=up(plain.offset + gamma(1) * (size + plain.offset) + UNDERFLOW),
    )


def convolution(
    weight: Tensor,
    bias: Tensor | None,
    shape: Shape,
    *,
    stride: int,
    padding: int,
    dilation: Sequence[int],
    groups: int,
) -> ProvedMap:
    """Return a zero-padded convolution as one product of the kernel with patches."""
    kernel = weight.detach().double().clone()
    size = (shape[1], shape[2])
    sparse = [_dilated(part, dilation).cpu() for part in kernel.chunk(groups)]
    # The convolution of each group stands alone: the norm of all is the largest of theirs.
    norm = max(convolution_norm(part, size, stride=stride, padding=padding) for part in sparse)
    products = [Product(norm, max(absolute_convolution_norm(part) for part in sparse), kernel[0].numel())]
    taps, steps = tuple(kernel.shape[2:]), (dilation[0], dilation[1])
    sides = [s + 2 * padding - d * (k - 1) - 1 for s, k, d in zip(size, taps, steps, strict=True)]
    height, width = (side // stride + 1 for side in sides)
    flat = kernel.flatten(1).unflatten(0, (groups, -1))  # g c_out/g c_in/g*k*k

    def apply(x: Tensor) -> Tensor:
        patches = F.unfold(x, taps, dilation=steps, padding=padding, stride=stride)
        product = flat @ patches.unflatten(1, (groups, -1))
        return product.flatten(1, 2).unflatten(-1, (height, width))

    plain = ProvedMap(apply, (kernel.shape[0], height, width), norm, gain_of_products(products), UNDERFLOW, OF_WEIGHTS)
    return biased(plain, bias, axis=-3)


def _dilated(kernel: Tensor, dilation: Sequence[int]) -> Tensor:
    """Return the kernel with zeros between its taps, whose plain convolution is the dilated one."""
    c_out, c_in, kh, kw = kernel.shape
    sparse = kernel.new_zeros(c_out, c_in, (kh - 1) * dilation[0] + 1, (kw - 1) * dilation[1] + 1)
    sparse[:, :, :: dilation[0], :: dilation[1]] = kernel
    return sparse


def along_axes(rows: Tensor, columns: Tensor, shape: Shape) -> ProvedMap:
    """Return x -> R x C' on every channel: means over windows and changes of size are of this form."""
    R, C = (t.detach().double().clone() for t in (rows, columns))
    products = [Product(largest_singular_value(t), absolute_norm(t), t.shape[1]) for t in (C, R)]
    norm = norm_of_products(products)
    output = (*shape[:-2], R.shape[0], C.shape[0])
    return ProvedMap(lambda x: R @ (x @ C.mT), output, norm, gain_of_products(products), UNDERFLOW, BY_DEFINITION)


def summed(shape: Shape, axes: Sequence[int], *, keepdim: bool, mean: bool) -> ProvedMap:
    """Return the sum or the mean over axes of one image's activations, counted from zero."""
    count = math.prod(shape[axis] for axis in axes)
    norm = math.sqrt(count) / count if mean else math.sqrt(count)
    dims, output = [axis + 1 for axis in axes], _without(shape, axes, keepdim=keepdim)
    apply: Apply = (
        (lambda x: x.sum(dims, keepdim=keepdim) / count) if mean else (lambda x: x.sum(dims, keepdim=keepdim))
    )
    # count - 1 additions, and a division that some devices compute as a product: the norm of |A| is that of A.
    return ProvedMap(apply, output, up(norm), up(gamma(count + 1) * norm), UNDERFLOW, BY_DEFINITION)


def normed(shape: Shape, axes: Sequence[int], *, keepdim: bool) -> ProvedMap:
    """Return the l2 norm over axes: 1-Lipschitz by the triangle inequality."""
    dims, count = [axis + 1 for axis in axes], math.prod(shape[axis] for axis in axes)
    output = _without(shape, axes, keepdim=keepdim)
    apply: Apply = lambda x: torch.linalg.vector_norm(x, dim=dims, keepdim=keepdim)  # noqa: E731
    return ProvedMap(apply, output, 1.0, gamma(count + 2), NORM_UNDERFLOW, BY_DEFINITION)


def largest(shape: Shape, axes: Sequence[int], *, keepdim: bool) -> ProvedMap:
    """Return the largest number over axes, exact."""
    dims = [axis + 1 for axis in axes]
    return ProvedMap(
        lambda x: x.amax(dims, keepdim=keepdim), _without(shape, axes, keepdim=keepdim), 1.0, remark=BY_DEFINITION
    )


def windows_maximum(apply: Apply, shape: Shape, output: Shape, overlaps: int) -> ProvedMap:
    """Return the largest number of every window, where one number lies in `overlaps` windows at most."""
    return ProvedMap(apply, output, 1.0 if overlaps == 1 else up(math.sqrt(overlaps)), remark=BY_DEFINITION)


def _without(shape: Shape, axes: Sequence[int], *, keepdim: bool) -> Shape:
    kept = ((1,) if axis in axes else (size,) for axis, size in enumerate(shape) if keepdim or axis not in axes)
    return tuple(size for sizes in kept for size in sizes)
