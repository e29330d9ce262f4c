"""Histograms of the margin on training and test images (Figure 12).

A row keeps the margin of the prediction to its runner-up. Wrong images are drawn at minus that margin, which is an
upper bound on the margin of their label, not that margin itself.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from bronet.report.curve import LIGHT, Theme, style
from bronet.run.rows import Row

SIZE_INCHES = (8.4, 3.6)
BINS = 40
PANELS = ("training images", "test images")


def signed_margins(rows: Sequence[Row]) -> Float[np.ndarray, " n"]:
    """Return the finite margins, those of wrong images negative."""
    margins = np.array([row.margin if row.correct else -row.margin for row in rows], dtype=np.float64)
    return margins[np.isfinite(margins)]


def draw_margins(runs: Mapping[str, tuple[Sequence[Row], Sequence[Row]]], *, theme: Theme = LIGHT) -> Figure:
    """Return a figure of the histograms of all runs: (training rows, test rows) of each, either may be empty."""
    margins = {name: [signed_margins(rows) for rows in pair] for name, pair in runs.items()}
    every = np.concatenate([values for pair in margins.values() for values in pair] or [np.zeros(0)])
    edges = np.histogram_bin_edges(every, bins=BINS) if every.size else np.linspace(0, 1, BINS + 1)
    with rc_context(style(theme)):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for number, (axes, title) in enumerate(zip((left, right), PANELS, strict=True)):
            panel = {name: pair[number] for name, pair in margins.items()}
            _draw_panel(axes, title, panel, edges, theme)
        left.set_ylabel("share of images")
        if len(runs) > 1:
            right.legend(frameon=False, labelcolor="linecolor")
    return figure


def _draw_panel(
    axes: Axes, title: str, margins: Mapping[str, Float[np.ndarray, " n"]], edges: Float[np.ndarray, " m"], theme: Theme
) -> None:
    axes.set(title=title, xlabel="logit margin", xlim=(edges[0], edges[-1]))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))  # whole percents
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0, symbol=" %"))
    axes.grid(axis="y", color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.axvline(0, color=theme.quiet, linewidth=0.9, linestyle=(0, (2, 3)))
    for number, (name, values) in enumerate(margins.items()):
        if values.size:
            counts, _ = np.histogram(values, bins=edges)
            color = theme.runs[number % len(theme.runs)]
            axes.stairs(counts / values.size, edges, color=color, linewidth=1.6, label=name)
            axes.stairs(counts / values.size, edges, color=color, alpha=0.15, fill=True)
    if not any(values.size for values in margins.values()):
        axes.text(0.5, 0.5, "not certified", transform=axes.transAxes, ha="center", color=theme.quiet)
