"""One orthogonal layer: beside a plain convolution and the textbook form, and how its time and memory grow.

Timed is a training step, with the parameter transform. On a GPU the layer is that of BRONet-M (512 channels, 16 x 16,
rank 128, batch 256), on a CPU a smaller one; where orthogonium is installed its AOC convolution is measured too. Growth
is measured with batch, width, image size and rank, on a CPU with the kernel's size as well, each varied alone: the
exponent is the slope of a straight line in logarithms, and the floor counts the least bytes and operations of the real
form (docs/speed.md).
"""

import importlib.util
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from bronet.bench.timing import forget_earlier_memory
from bronet.files import replace_bytes
from bronet.layers import BROConv2d
from bronet.ortho.products import float32_products
from bronet.ortho.real_dft import frequencies, is_dense
from bronet.ortho.reflector import textbook_bro_convolution
from bronet.report.figures import COLOURS, GRID, QUIET, figure_bytes
from lab.bench.timing import TimingRow, timing_row

KERNEL = 3


@dataclass(frozen=True)
class LayerShape:
    """What is measured: channels, rank, image side, batch and taps per axis."""

    channels: int
    rank: int
    size: int
    batch: int
    kernel: int = KERNEL

    def __str__(self) -> str:
        taps = "" if self.kernel == KERNEL else f", {self.kernel} x {self.kernel} taps"
        return f"{self.channels} channels, rank {self.rank}, {self.size} x {self.size}, batch {self.batch}{taps}"


CPU_SHAPE = LayerShape(channels=64, rank=16, size=32, batch=32)
GPU_SHAPE = LayerShape(channels=512, rank=128, size=16, batch=256)


def bench_layer(shape: LayerShape, device: torch.device, *, repeats: int) -> Iterator[TimingRow]:
    """Yield a row for each subject and dtype; float32 products use TF32 on a GPU, on all sides alike."""
    dtypes = (torch.float32, torch.bfloat16) if device.type == "cuda" else (torch.float32,)
    with float32_products(tf32=True):
        for dtype in dtypes:
            for subject, step, records in _subjects(shape, device, dtype):
                if device.type == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                yield timing_row(
                    step,
                    device,
                    bench="layer",
                    subject=subject,
                    shape=str(shape),
                    dtype=str(dtype).removeprefix("torch."),
                    repeats=repeats,
                    record=records,
                )


def _subjects(
    shape: LayerShape, device: torch.device, dtype: torch.dtype
) -> Iterator[tuple[str, Callable[[], None], bool]]:
    c, s, b = shape.channels, shape.size, shape.batch
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(s, s, c, b, generator=generator, device=device).to(dtype).permute(3, 2, 0, 1)
    plain_x = x.contiguous(memory_format=torch.channels_last) if device.type == "cuda" else x.contiguous()
    plain = nn.Conv2d(c, c, 3, padding=1, device=device, dtype=dtype)
    if device.type == "cuda":
        plain = plain.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    yield "plain convolution", training_step(plain, plain_x), True
    bro = BROConv2d(c, c, 3, rank=shape.rank, residual_depth=12, device=device)
    yield "BRO, real form", training_step(bro, x), True
    if dtype == torch.float32:  # complex numbers have no half precision, and cuSOLVER's inverse cannot be recorded

        def textbook(x: Tensor) -> Tensor:
            return textbook_bro_convolution(x, bro.V(dtype), c_out=c)

        yield "BRO, textbook form", training_step(textbook, x.contiguous(), bro), False
    if importlib.util.find_spec("orthogonium") is not None:
        from orthogonium.layers.conv.AOC import AdaptiveOrthoConv2d

        aoc = AdaptiveOrthoConv2d(c, c, 3, padding=1).to(device)
        yield "orthogonium AOC", training_step(aoc, plain_x.float()), False


def training_step(
    function: Callable[[Tensor], Tensor], x: Tensor, owner: nn.Module | None = None
) -> Callable[[], None]:
    """Return forward and backward with respect to input and parameters."""
    module = owner if owner is not None else function
    own = module.parameters() if isinstance(module, nn.Module) else ()
    parameters = [parameter for parameter in own if parameter.requires_grad]
    x = x.detach().requires_grad_()
    gradient: Tensor = torch.randn_like(function(x))

    def step() -> None:
        torch.autograd.grad(function(x), [x, *parameters], gradient)

    return step


AXES: dict[str, dict[str, tuple[int, ...]]] = {
    "cuda": {
        "batch": (64, 128, 256, 512),
        "channels": (128, 256, 512, 1024),
        "size": (8, 16, 24, 32),
        "rank": (32, 64, 128, 256),
    },
    "cpu": {
        "batch": (8, 16, 32, 64),
        "channels": (32, 64, 128, 256),
        "size": (16, 32, 64, 128),
        "rank": (4, 8, 16, 32),
        "kernel": (3, 5, 7, 9),
    },
}
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
    conv = BROConv2d(shape.channels, shape.channels, shape.kernel, rank=shape.rank, residual_depth=12, device=device)
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


def draw_scaling(
    points: Sequence[tuple[str, int, TimingRow]], base: LayerShape, device: torch.device, path: Path
) -> None:
    """Write a PNG with one panel per axis; on a GPU the floor of an H200 is drawn beneath."""
    axes = list(dict.fromkeys(axis for axis, _, _ in points))
    on_gpu = device.type == "cuda"
    figure = Figure(figsize=(3.2 * len(axes), 5.6 if on_gpu else 3.2), layout="constrained")
    panels = figure.subplots(2 if on_gpu else 1, len(axes), sharey="row", squeeze=False)
    for column, axis in enumerate(axes):
        values = [value for name, value, _ in points if name == axis]
        rows = [row for name, _, row in points if name == axis]
        times = [row.median_ms for row in rows]
        time = panels[0][column]
        time.loglog(values, times, "o-", color=COLOURS[0], label="measured")
        time.set_title(f"time exponent {exponent(values, times):.2f}", fontsize=10)
        if on_gpu:
            floors = [max(floor_ms(at(base, axis, value), device)) for value in values]
            time.loglog(values, floors, "--", color=QUIET, label="floor of an H200")
            memory = [row.peak_gib for row in rows]
            panels[1][column].loglog(values, memory, "o-", color=COLOURS[1])
            panels[1][column].set_title(f"memory exponent {exponent(values, memory):.2f}", fontsize=10)
        for panel in panels[:, column]:
            panel.set_xticks(values, [str(value) for value in values])
            panel.minorticks_off()
            panel.grid(color=GRID)
        panels[-1][column].set_xlabel(axis)
    panels[0][0].set_ylabel("training step, ms")
    panels[0][0].legend(frameon=False)
    if on_gpu:
        panels[1][0].set_ylabel("peak memory, GiB")
    replace_bytes(path, figure_bytes(figure, "png"))
