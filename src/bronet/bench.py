"""How fast a recipe's network is on this machine: a training step, and inference.

A time is warmed up and repeated, and the median counts; on a GPU it is taken from events around a recorded graph, which
removes the gaps between kernel launches on both sides of a comparison alike.
"""

import csv
import gc
import io
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bronet.files import replace_bytes
from bronet.layers import frozen
from bronet.layers.execution import SideStream
from bronet.models import build_model
from bronet.recipe import Recipe, override
from bronet.train.statistics import Tally
from bronet.train.step import TrainStep
from bronet.train.teacher import new_teacher

TRAINING, INFERENCE = "training step", "inference"
WARM_UP = 3
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class TimingRow:
    """One measurement: what was run, on what, and what it took. `spread` is (slowest - fastest) / median."""

    bench: str
    subject: str
    shape: str
    dtype: str
    device: str
    median_ms: float
    spread: float
    repeats: int
    peak_gib: float
    torch: str = torch.__version__


def hardware_name(device: torch.device) -> str:
    """Return the name of the device as a row records it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def measure(function: Callable[[], object], device: torch.device, *, repeats: int, record: bool = True) -> list[float]:
    """Return the milliseconds of each repeat of the function, warmed up."""
    if device.type == "cuda":
        return _measure_cuda(function, device, repeats=repeats, record=record)
    for _ in range(WARM_UP):
        function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append((time.perf_counter() - start) * 1e3)
    return times


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


def forget_earlier_memory(device: torch.device) -> None:
    """Let the peak memory of the next row be its own."""
    if device.type == "cuda":
        gc.collect()  # a recorded step refers to itself, and keeps its memory until then
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def timing_row(
    function: Callable[[], object],
    device: torch.device,
    *,
    bench: str,
    subject: str,
    shape: str,
    dtype: str,
    repeats: int,
    record: bool = True,
) -> TimingRow:
    """Measure the function and describe it as a row; peak memory, since it was last reset, is known on a GPU only."""
    times = measure(function, device, repeats=repeats, record=record)
    peak = torch.cuda.max_memory_allocated() / GIB if device.type == "cuda" else 0.0
    median = statistics.median(times)
    return TimingRow(
        bench=bench,
        subject=subject,
        shape=shape,
        dtype=dtype,
        device=hardware_name(device),
        median_ms=round(median, 4),
        spread=round((max(times) - min(times)) / median, 3),
        repeats=repeats,
        peak_gib=round(peak, 3),
    )


def write_timings(path: Path, rows: Sequence[TimingRow]) -> None:
    """Write rows as CSV, replacing the file at once."""
    replace_bytes(path, csv_text(rows).encode())


def csv_text(rows: Sequence[Any]) -> str:
    """Return at least one row, any dataclass, as a CSV file under the names of its fields; None is an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(asdict(rows[0])), lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue()


def time_recipe(
    recipe: Recipe, device: torch.device, *, repeats: int, settings: Sequence[str] = ()
) -> Iterator[tuple[str, TimingRow]]:
    """Yield a row for a training step and one for inference of a recipe with settings changed; pixels are random.

    Products are in bf16 on a GPU and in float32 on a CPU, unless a setting says otherwise.
    """
    precision = "bf16" if device.type == "cuda" else "float32"
    recipe = override(recipe, [f"train.precision={precision}", *settings])
    for kind, take in ((TRAINING, _training), (INFERENCE, _inference)):
        yield kind, take(recipe, ", ".join((recipe.name, *settings, kind)), device, repeats)


def _shape(recipe: Recipe) -> str:
    spec = recipe.data.spec()
    return f"{spec.channels} x {spec.height} x {spec.width}, batch {recipe.train.batch_size}"


def _inputs(recipe: Recipe, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    spec, batch = recipe.data.spec(), recipe.train.batch_size
    generator = torch.Generator(device).manual_seed(0)
    pixels = torch.rand(batch, spec.channels, spec.height, spec.width, generator=generator, device=device)
    labels = torch.randint(spec.classes, (batch,), generator=generator, device=device)
    return pixels, labels


def _training(recipe: Recipe, name: str, device: torch.device, repeats: int) -> TimingRow:
    forget_earlier_memory(device)
    model = build_model(recipe.model, recipe.data.spec(), device=device).train()
    teacher = new_teacher(recipe, device) if recipe.loss.teacher else None
    step = TrainStep(recipe, model, Tally(eps=0.1, device=device), teacher=teacher)
    pixels, labels = _inputs(recipe, device)

    def once() -> None:
        step(pixels, labels, number=0, learning_rate=1e-4, emma_eps=0.1)

    if device.type == "cuda":  # the step records itself; let it finish that before the clock starts
        measure(once, device, repeats=3, record=False)
    return timing_row(
        once,
        device,
        bench="step",
        subject=name,
        shape=_shape(recipe),
        dtype=recipe.train.precision,
        repeats=repeats,
        record=False,
    )


@torch.no_grad()
def _inference(recipe: Recipe, name: str, device: torch.device, repeats: int) -> TimingRow:
    forget_earlier_memory(device)
    model = build_model(recipe.model, recipe.data.spec(), device=device).eval()
    pixels, _ = _inputs(recipe, device)
    bf16 = recipe.train.precision == "bf16"

    def once() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16, cache_enabled=False):
            model(pixels)

    with frozen(model):
        return timing_row(
            once,
            device,
            bench="step",
            subject=name,
            shape=_shape(recipe),
            dtype=recipe.train.precision,
            repeats=repeats,
        )
