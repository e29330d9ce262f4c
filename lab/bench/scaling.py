"""How one BRO layer's time and memory grow with batch, width, image size and rank, with the measured exponents.

Each axis is varied alone around one shape. The exponent is the slope of a straight line through the points in
logarithms; the floor beside it counts the least bytes and operations of the real form (docs/speed.md).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from bronet.bench import TimingRow, forget_earlier_memory, timing_row
from bronet.layers import BROConv2d
from bronet.ortho.numerics import float32_products
from bronet.ortho.real_dft import frequencies, is_dense
from lab.bench.layer import LayerShape, training_step

AXES: dict[str, dict[str, tuple[int, ...]]] = {
    "cuda": {
        "batch": (64, 128, 256, 512),
        "channels": (128, 256, 512, 1024),
        "size": (8, 16, 24, 32),
        "rank": (32, 64, 128, 256),
    },
    "cpu": {"batch": (8, 16, 32), "channels": (32, 64, 128), "size": (8, 16, 32), "rank": (4, 16, 32)},
}
KERNEL = 3
# One H200, measured: bytes per second of a copy and bf16 operations per second of a large product.
BANDWIDTH, OPERATIONS = 4.3e12, 790e12


def bench_scaling(base: LayerShape, device: torch.device, *, repeats: int) -> Iterator[tuple[str, int, TimingRow]]:
    """Yield (axis, value, row) for every point."""
    for axis, values in AXES[device.type].items():
        for value in values:
            shape = at(base, axis, value)
            with float32_products(tf32=True):
                yield axis, value, _point(shape, axis, device, repeats)


def at(base: LayerShape, axis: str, value: int) -> LayerShape:
    """Return the shape with one axis changed; with the channels the rank changes in proportion."""
    shape = replace(base, **{axis: value})
    return replace(shape, rank=value * base.rank // base.channels) if axis == "channels" else shape


def _point(shape: LayerShape, axis: str, device: torch.device, repeats: int) -> TimingRow:
    forget_earlier_memory(device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    conv = BROConv2d(shape.channels, shape.channels, KERNEL, rank=shape.rank, residual_depth=12, device=device)
    x = torch.randn(shape.size, shape.size, shape.channels, shape.batch, device=device, dtype=dtype)
    return timing_row(
        training_step(conv, x.permute(3, 2, 0, 1)),
        device,
        bench="scaling",
        subject=f"BRO, real form, by {axis}",
        shape=str(shape),
        dtype=str(dtype).removeprefix("torch."),
        repeats=repeats,
    )


def exponent(values: Sequence[float], times: Sequence[float]) -> float:
    """Return the slope of log(time) over log(value), by least squares."""
    x, y = [math.log(v) for v in values], [math.log(t) for t in times]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - mean_x) ** 2 for a in x)


def floor_ms(shape: LayerShape, device: torch.device, *, element_bytes: int = 2) -> tuple[float, float]:
    """Return the milliseconds that bytes alone and operations alone would take on an H200: the real form's floor.

    Bytes: x, y, their gradients, and A with its gradient, each once. Operations: the fourteen products of a step.
    """
    grid = (shape.size + 2 * (KERNEL // 2),) * 2
    dense = is_dense(grid, device)
    f, pixels = len(frequencies(grid, dense=dense)), shape.size**2
    c, n, b = shape.channels, shape.rank, shape.batch
    activations, blocks = pixels * c * b, f * 4 * c * n
    moved = (4 * activations + 2 * blocks) * element_bytes
    transform = 2 * (2 * f) * pixels * c * b if dense else 2 * c * b * _separable_operations(shape.size, grid)
    with_blocks = 2 * f * (2 * c) * (2 * n) * b
    with_inverse = 2 * f * (2 * n) ** 2 * b
    operations = 5 * transform + 7 * with_blocks + 2 * with_inverse
    return moved / BANDWIDTH * 1e3, operations / OPERATIONS * 1e3


def _separable_operations(size: int, grid: tuple[int, int]) -> int:
    half = grid[0] // 2 + 1
    return 2 * half * size * size + half * 2 * grid[1] * 2 * size
