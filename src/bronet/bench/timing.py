"""How a time is taken: warmed up, repeated, the median kept; on a GPU from events around a recorded graph.

Recording removes the gaps between kernel launches, on both sides of a comparison alike.
"""

import gc
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bronet.bench.row_file import csv_text
from bronet.files import replace_bytes
from bronet.layers.execution import Beside

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


def device_name(device: torch.device) -> str:
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
    beside = Beside(device)
    with beside():
        for _ in range(WARM_UP):
            function()
    beside.wait()
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
        device=device_name(device),
        median_ms=round(median, 4),
        spread=round((max(times) - min(times)) / median, 3),
        repeats=repeats,
        peak_gib=round(peak, 3),
    )


def write_timings(path: Path, rows: Sequence[TimingRow]) -> None:
    """Write rows as CSV, replacing the file at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_bytes(path, csv_text(rows).encode())
