"""A timing as a row of a CSV file: what was run, on what, and what it took."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bronet.bench.timing import Timing, hardware_name, measure, time_inference, time_training, usual_precision
from bronet.files import replace_text
from bronet.recipe import Recipe, override
from lab.bench import csv_text

TRAINING, INFERENCE = "training step", "inference"


@dataclass(frozen=True, kw_only=True)
class TimingRow:
    """One measurement. `spread` is (slowest - fastest) / median; peak memory is known on a GPU only."""

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
    """Measure the function and describe it as a row."""
    timing = measure(function, device, repeats=repeats, record=record)
    return described(timing, device, bench=bench, subject=subject, shape=shape, dtype=dtype)


def described(timing: Timing, device: torch.device, *, bench: str, subject: str, shape: str, dtype: str) -> TimingRow:
    """Return a timing as a row."""
    median = statistics.median(timing.times)
    return TimingRow(
        bench=bench,
        subject=subject,
        shape=shape,
        dtype=dtype,
        device=hardware_name(device),
        median_ms=round(median, 4),
        spread=round((max(timing.times) - min(timing.times)) / median, 3),
        repeats=len(timing.times),
        peak_gib=round(timing.peak_gib, 3),
    )


def recipe_rows(recipe: Recipe, device: torch.device, *, repeats: int) -> Iterator[tuple[str, TimingRow]]:
    """Yield a row for a training step and one for inference of a recipe, in bf16 on a GPU and float32 on a CPU."""
    recipe = override(recipe, [usual_precision(device)])
    spec = recipe.data.spec()
    shape = f"{spec.channels} x {spec.height} x {spec.width}, batch {recipe.train.batch_size}"
    for kind, take in ((TRAINING, time_training), (INFERENCE, time_inference)):
        subject, timing = f"{recipe.name}, {kind}", take(recipe, device, repeats=repeats)
        yield kind, described(timing, device, bench="step", subject=subject, shape=shape, dtype=recipe.train.precision)


def write_timings(path: Path, rows: Sequence[TimingRow]) -> None:
    """Write rows as CSV, replacing the file at once."""
    replace_text(path, csv_text(rows))
