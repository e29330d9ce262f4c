"""The picture of `bronet bench scaling`: time against each axis in logarithms, with the exponent and the floor."""

from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure

from bronet.bench import TimingRow
from bronet.files import replace_bytes
from bronet.report.figures import LIGHT, figure_bytes
from lab.bench.layer import LayerShape
from lab.bench.scaling import at, exponent, floor_ms


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
        time.loglog(values, times, "o-", color=LIGHT.runs[0], label="measured")
        time.set_title(f"time exponent {exponent(values, times):.2f}", fontsize=10)
        if on_gpu:
            floors = [max(floor_ms(at(base, axis, value), device)) for value in values]
            time.loglog(values, floors, "--", color=LIGHT.quiet, label="floor of an H200")
            memory = [row.peak_gib for row in rows]
            panels[1][column].loglog(values, memory, "o-", color=LIGHT.runs[1])
            panels[1][column].set_title(f"memory exponent {exponent(values, memory):.2f}", fontsize=10)
        for panel in panels[:, column]:
            panel.set_xticks(values, [str(value) for value in values])
            panel.minorticks_off()
            panel.grid(color=LIGHT.grid)
        panels[-1][column].set_xlabel(axis)
    panels[0][0].set_ylabel("training step, ms")
    panels[0][0].legend(frameon=False)
    if on_gpu:
        panels[1][0].set_ylabel("peak memory, GiB")
    replace_bytes(path, figure_bytes(figure, "png"))
