"""The picture of `bronet bench scaling`: time against each axis in logarithms, with the exponent and the floor."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from matplotlib.figure import Figure

from bronet.atomic import replace_bytes
from bronet.bench.layer import LayerShape
from bronet.bench.scaling import exponent, floor_ms
from bronet.bench.timing import TimingRow
from bronet.report.curve import LIGHT, figure_bytes


def draw_scaling(
    points: Sequence[tuple[str, int, TimingRow]], base: LayerShape, device: torch.device, path: Path
) -> None:
    """Write a PNG with one panel per axis; on a GPU the floor of an H200 is drawn beneath."""
    axes = list(dict.fromkeys(axis for axis, _, _ in points))
    figure = Figure(figsize=(3.2 * len(axes), 3.2), layout="constrained")
    for panel, axis in zip(figure.subplots(1, len(axes), sharey=True), axes, strict=True):
        values = [value for name, value, _ in points if name == axis]
        times = [row.median_ms for name, _, row in points if name == axis]
        panel.loglog(values, times, "o-", color=LIGHT.runs[0], label="measured")
        if device.type == "cuda":
            floors = [max(floor_ms(_at(base, axis, value), device)) for value in values]
            panel.loglog(values, floors, "--", color=LIGHT.quiet, label="floor")
        panel.set_xlabel(axis)
        panel.set_title(f"exponent {exponent(values, times):.2f}", fontsize=10)
        panel.set_xticks(values, [str(value) for value in values])
        panel.minorticks_off()
        panel.grid(color=LIGHT.grid)
    figure.axes[0].set_ylabel("training step, ms")
    figure.axes[0].legend(frameon=False)
    replace_bytes(path, figure_bytes(figure, "png"))


def _at(base: LayerShape, axis: str, value: int) -> LayerShape:
    shape = replace(base, **{axis: value})
    return replace(shape, rank=value * base.rank // base.channels) if axis == "channels" else shape
