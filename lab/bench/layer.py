"""One orthogonal layer against a plain convolution and the textbook form: a training step, with parameter transform.

On a GPU the layer of BRONet-M (512 channels, 16 x 16, rank 128, batch 256); on a CPU a smaller one. Where orthogonium
is installed its AOC convolution is measured too. Every subject sees the same input shape and dtype.
"""

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bronet.bench import TimingRow, timing_row
from bronet.layers import BROConv2d
from bronet.ortho.numerics import float32_products
from bronet.ortho.reflector import textbook_bro_convolution


@dataclass(frozen=True)
class LayerShape:
    """What is measured: channels, rank, image side and batch."""

    channels: int
    rank: int
    size: int
    batch: int

    def __str__(self) -> str:
        return f"{self.channels} channels, rank {self.rank}, {self.size} x {self.size}, batch {self.batch}"


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
    parameters = list(module.parameters()) if isinstance(module, nn.Module) else []
    x = x.detach().requires_grad_()
    gradient: Tensor = torch.randn_like(function(x))

    def step() -> None:
        torch.autograd.grad(function(x), [x, *parameters], gradient)

    return step
