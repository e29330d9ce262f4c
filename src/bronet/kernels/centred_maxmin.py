"""Centring, bias and MaxMin of activations in the memory order (pixel, channel, batch), in two passes each way.

The torch version (`layers.shift.Centring`, then `layers.activation.MaxMin`) makes about nine passes. The backward pass
keeps one byte per pair instead of the activations.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int8
from torch import Tensor

_BLOCK = 1024
_SPLITS = 8  # parts of the image that a channel's sum is split into


@triton.jit
def _forward_kernel(y, shift, out, swapped, pairs_b, b, half, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    pixel = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = index < pairs_b
    channel = index // b
    first = y + pixel * 2 * pairs_b + index
    x = tl.load(first, mask=inside, other=0.0).to(tl.float32) + tl.load(shift + channel, mask=inside, other=0.0)
    z = tl.load(first + pairs_b, mask=inside, other=0.0).to(tl.float32)
    z += tl.load(shift + half + channel, mask=inside, other=0.0)
    target = out + pixel * 2 * pairs_b + index
    kind = out.dtype.element_ty
    tl.store(target, tl.maximum(x, z).to(kind), mask=inside)
    tl.store(target + pairs_b, tl.minimum(x, z).to(kind), mask=inside)
    tl.store(swapped + pixel * pairs_b + index, (z > x).to(tl.int8), mask=inside)


@triton.jit
def _backward_kernel(g, swapped, mean, out, pairs_b, b, half, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    pixel = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = index < pairs_b
    channel = index // b
    first = g + pixel * 2 * pairs_b + index
    top = tl.load(first, mask=inside, other=0.0).to(tl.float32)
    bottom = tl.load(first + pairs_b, mask=inside, other=0.0).to(tl.float32)
    swap = tl.load(swapped + pixel * pairs_b + index, mask=inside, other=0) != 0
    target = out + pixel * 2 * pairs_b + index
    kind = out.dtype.element_ty
    low = tl.where(swap, bottom, top) - tl.load(mean + channel, mask=inside, other=0.0)
    high = tl.where(swap, top, bottom) - tl.load(mean + half + channel, mask=inside, other=0.0)
    tl.store(target, low.to(kind), mask=inside)
    tl.store(target + pairs_b, high.to(kind), mask=inside)


@triton.jit
def _channel_sum_kernel(g, swapped, sums, pixels, per_program, pairs_b, b, half, B_PADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    channel = tl.program_id(0)
    lane = tl.arange(0, B_PADDED)
    inside = lane < b
    low = tl.zeros([B_PADDED], dtype=tl.float32)
    high = tl.zeros([B_PADDED], dtype=tl.float32)
    start = tl.program_id(1) * per_program
    for pixel in range(start, tl.minimum(start + per_program, pixels)):
        place = pixel.to(tl.int64) * 2 * pairs_b + channel * b + lane
        top = tl.load(g + place, mask=inside, other=0.0).to(tl.float32)
        bottom = tl.load(g + place + pairs_b, mask=inside, other=0.0).to(tl.float32)
        swap = tl.load(swapped + pixel.to(tl.int64) * pairs_b + channel * b + lane, mask=inside, other=0) != 0
        low += tl.where(swap, bottom, top)
        high += tl.where(swap, top, bottom)
    row = tl.program_id(1) * 2 * half
    tl.store(sums + row + channel, tl.sum(low, axis=0))
    tl.store(sums + row + half + channel, tl.sum(high, axis=0))


@triton.jit
def _channel_mean_kernel(y, sums, pixels, per_program, c, b, B_PADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    channel = tl.program_id(0)
    lane = tl.arange(0, B_PADDED)
    total = tl.zeros([B_PADDED], dtype=tl.float32)
    start = tl.program_id(1) * per_program
    for pixel in range(start, tl.minimum(start + per_program, pixels)):
        place = (pixel * c + channel).to(tl.int64) * b + lane
        total += tl.load(y + place, mask=lane < b, other=0.0).to(tl.float32)
    tl.store(sums + tl.program_id(1) * c + channel, tl.sum(total, axis=0))


def channel_mean(y: Float[Tensor, "pixels c b"]) -> Float[Tensor, " c"]:
    """Return the mean of every channel, summed in float32."""
    pixels, c, b = y.shape
    per_program = max(1, pixels // _SPLITS)
    splits = triton.cdiv(pixels, per_program)
    sums = torch.empty(splits, c, device=y.device, dtype=torch.float32)
    _channel_mean_kernel[(c, splits)](y, sums, pixels, per_program, c, b, B_PADDED=triton.next_power_of_2(b))
    return sums.sum(0) / (pixels * b)


def shifted_maxmin(
    y: Float[Tensor, "pixels c b"], shift: Float[Tensor, " c"]
) -> tuple[Float[Tensor, "pixels c b"], Int8[Tensor, "pixels pairs b"]]:
    """Return MaxMin(y + shift) and, for every pair, whether its channels changed places."""
    pixels, c, b = y.shape
    out = torch.empty_like(y)
    swapped = torch.empty(pixels, c // 2, b, device=y.device, dtype=torch.int8)
    pairs_b = c // 2 * b
    grid = (pixels, triton.cdiv(pairs_b, _BLOCK))
    _forward_kernel[grid](y, shift.float(), out, swapped, pairs_b, b, c // 2, BLOCK=_BLOCK)
    return out, swapped


def shifted_maxmin_backward(
    g: Float[Tensor, "pixels c b"],
    swapped: Int8[Tensor, "pixels pairs b"],
    *,
    centre: Callable[[Tensor], Tensor] | None,
) -> tuple[Float[Tensor, "pixels c b"], Float[Tensor, " c"]]:
    """Return the gradients of y and of the shift.

    If y was centred, `centre` turns this process's mean into that of all processes, and the channel's mean is
    subtracted from the gradient of y.
    """
    pixels, c, b = g.shape
    per_program = max(1, pixels // _SPLITS)
    splits = triton.cdiv(pixels, per_program)
    pairs_b = c // 2 * b
    sums = torch.empty(splits, c, device=g.device, dtype=torch.float32)
    _channel_sum_kernel[(c // 2, splits)](
        g, swapped, sums, pixels, per_program, pairs_b, b, c // 2, B_PADDED=triton.next_power_of_2(b)
    )
    total = sums.sum(0)
    return maxmin_backward(g, swapped, mean=centre(total / (pixels * b)) if centre is not None else None), total


def maxmin_backward(
    g: Float[Tensor, "pixels c b"], swapped: Int8[Tensor, "pixels pairs b"], *, mean: Float[Tensor, " c"] | None = None
) -> Float[Tensor, "pixels c b"]:
    """Return the gradient of y minus a mean for every channel."""
    pixels, c, b = g.shape
    pairs_b = c // 2 * b
    out = torch.empty_like(g)
    grid = (pixels, triton.cdiv(pairs_b, _BLOCK))
    mean = torch.zeros(c, device=g.device) if mean is None else mean
    _backward_kernel[grid](g, swapped, mean, out, pairs_b, b, c // 2, BLOCK=_BLOCK)
    return out
