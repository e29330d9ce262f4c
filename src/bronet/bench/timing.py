"""How fast a recipe's network is on this machine: a training step, and inference.

A time is warmed up and repeated, and the median counts; on a GPU it is taken from events around a recorded graph, which
removes the gaps between kernel launches.
"""

import gc
import platform
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from bronet.layers import frozen
from bronet.layers.execution import SideStream
from bronet.models import build_model
from bronet.recipe import Recipe
from bronet.training.statistics import Tally
from bronet.training.step import TrainStep
from bronet.wording import GIB

WARM_UP = 3


class Timing(NamedTuple):
    """Milliseconds of each repeat, and the peak of the GPU's memory since it was last reset (0 on a CPU)."""

    times: list[float]
    peak_gib: float


def usual_precision(device: torch.device) -> str:
    """Return the precision that a device is timed in, as a setting of a recipe."""
    return f"train.precision={'bf16' if device.type == 'cuda' else 'float32'}"


def hardware_name(device: torch.device) -> str:
    """Return the name of the device, for people."""
    on_gpu = device.type == "cuda"
    return (
        torch.cuda.get_device_name(device) if on_gpu else f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    )


def time_training(recipe: Recipe, device: torch.device, *, repeats: int) -> Timing:
    """Time a training step of the network at initialisation on random pixels."""
    forget_earlier_memory(device)
    model = build_model(recipe.model, recipe.data.spec(), device=device).train()
    step = TrainStep(recipe, model, Tally(eps=0.1, device=device))
    pixels, labels = _batch(recipe, device)

    def once() -> None:
        step(pixels, labels, number=0, learning_rate=1e-4, emma_eps=0.1)

    if device.type == "cuda":  # the step records itself; let it finish that before the clock starts
        measure(once, device, repeats=3, record=False)
    return measure(once, device, repeats=repeats, record=False)


@torch.no_grad()
def time_inference(recipe: Recipe, device: torch.device, *, repeats: int) -> Timing:
    """Time the network's logits of a batch of random pixels, its weights computed beforehand."""
    forget_earlier_memory(device)
    model = build_model(recipe.model, recipe.data.spec(), device=device).eval()
    pixels, _ = _batch(recipe, device)
    bf16 = recipe.train.precision == "bf16"

    def once() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16, cache_enabled=False):
            model(pixels)

    with frozen(model):
        return measure(once, device, repeats=repeats)


def _batch(recipe: Recipe, device: torch.device) -> tuple[Tensor, Tensor]:
    spec, size = recipe.data.spec(), recipe.train.batch_size
    generator = torch.Generator(device).manual_seed(0)
    pixels = torch.rand(size, *spec.shape, generator=generator, device=device)
    return pixels, torch.randint(spec.classes, (size,), generator=generator, device=device)


def forget_earlier_memory(device: torch.device) -> None:
    """Let the peak memory of the next measurement be its own."""
    if device.type == "cuda":
        gc.collect()  # a recorded step refers to itself, and keeps its memory until then
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def measure(function: Callable[[], object], device: torch.device, *, repeats: int, record: bool = True) -> Timing:
    """Time the function, warmed up; on a GPU as a recorded graph, unless `record` is false."""
    if device.type == "cuda":
        times = _measure_cuda(function, device, repeats=repeats, record=record)
        return Timing(times, torch.cuda.max_memory_allocated() / GIB)
    for _ in range(WARM_UP):
        function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append((time.perf_counter() - start) * 1e3)
    return Timing(times, 0.0)


def _measure_cuda(function: Callable[[], object], device: torch.device, *, repeats: int, record: bool) -> list[float]:
    side = SideStream(device)
    with side():
        for _ in range(WARM_UP):
            function()
    side.wait()
    run = function
    if record:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            function()
        run = graph.replay
    run()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()  # type: ignore[no-untyped-call]
        run()
        end.record()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))  # type: ignore[no-untyped-call]
    return times
