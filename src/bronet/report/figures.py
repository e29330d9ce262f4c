"""The figures of a report: certified accuracy over the radius (Figure 3) and histograms of the margin (Figure 12).

The curve is an exact step function of the rows: at radius r it is the share of images that are correct with a radius
larger than r, so it falls by one image at each radius. Nothing is smoothed or sampled.

A row keeps the margin of the prediction to its runner-up. In the histograms wrong images are drawn at minus that
margin, which is an upper bound on the margin of their label, not that margin itself.
"""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from bronet.errors import BronetError
from bronet.recipe.schema import parse_budget
from bronet.run.certificate import Row

if TYPE_CHECKING:  # what draws imports it: half a second that other commands do not need
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVE_INCHES = (7.2, 4.2)
MARGINS_INCHES = (8.4, 3.6)
DOTS_PER_INCH = 200
RIGHT_MARGIN = 1.05
LETTER_WIDTH = 0.015
"""Width of a letter, as a share of the axis: generous, so that labels stay apart."""
LINE_HEIGHT = 0.065
"""Height of a line of text in units of accuracy."""
TRUETYPE = 42
"""PDF font type whose text can be searched and edited."""
UNIT_RADIUS = 1.0
"""Width of the plot when no image has a positive finite radius."""
BINS = 40
KINDS: tuple[Literal["png", "pdf"], ...] = ("png", "pdf")
PANELS = ("training images", "test images")


class Theme(NamedTuple):
    """Colours of a plot: ink, quiet ink for marks and grid, paper, and one colour per run."""

    ink: str
    quiet: str
    grid: str
    paper: str
    runs: tuple[str, ...]


LIGHT = Theme("#1c2430", "#667085", "#e6e9ee", "#ffffff", ("#2458c7", "#c2410c", "#0f7b5f", "#7a3fb5", "#a3174f"))


class Curve(NamedTuple):
    """Corners of a right-continuous step function: `accuracy[i]` holds from `radius[i]` to the next."""

    radius: Float[np.ndarray, " n"]
    accuracy: Float[np.ndarray, " n"]


def certified_curve(rows: Sequence[Row]) -> Curve:
    """Return certified accuracy as a function of the radius, from radius 0 on."""
    if not rows:
        raise BronetError("rows must hold at least one image, got none; certify first")
    return step_curve([row.radius for row in rows if row.correct], len(rows))


def step_curve(distances: ArrayLike, images: int) -> Curve:
    """Return the share of so many images whose distance is larger than a radius; those not given have none."""
    found = np.sort(np.asarray(distances, dtype=np.float64))
    corners = np.unique(np.append(found[np.isfinite(found)], 0.0))
    return Curve(corners, (found.size - np.searchsorted(found, corners, side="right")) / images)


def draw_curve(runs: Mapping[str, Sequence[Row]], eps: Sequence[str], *, furthest: float | None = None) -> "Figure":
    """Return a figure of the curves of all runs, up to `furthest`, with a mark at each eps ("36/255", ...)."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    curves = {name: certified_curve(rows) for name, rows in runs.items()}
    budgets = {text: parse_budget(text, name="eps") for text in eps}
    reach = max([*budgets.values(), *(float(curve.radius[-1]) for curve in curves.values())], default=0.0)
    reach = furthest or reach * RIGHT_MARGIN or UNIT_RADIUS
    with rc_context(style(LIGHT)):
        figure = Figure(figsize=CURVE_INCHES, layout="constrained")
        axes = figure.add_subplot()
        _draw_frame(axes)
        axes.set(xlim=(0, reach), xlabel="l2 radius in pixel space [0, 1]", ylabel="images proved correct")
        axes.set_yticks(np.linspace(0, 1, 6))
        axes.tick_params(length=3)
        axes.spines["left"].set_bounds(0, 1)
        _draw_marks(axes, budgets, reach)
        for number, (name, curve) in enumerate(curves.items()):
            color = LIGHT.runs[number % len(LIGHT.runs)]
            shown = curve.radius < reach
            radius, accuracy = np.append(curve.radius[shown], reach), curve.accuracy[shown]
            accuracy = np.append(accuracy, accuracy[-1])
            line = axes.plot(radius, accuracy, drawstyle="steps-post", color=color, linewidth=2.0, label=name)
            line[0].set_solid_joinstyle("miter")
            if len(curves) == 1:
                axes.fill_between(radius, accuracy, step="post", color=color, alpha=0.08, linewidth=0)
                _label_values(axes, curve, budgets, color)
        if len(curves) > 1:
            # Curves only fall, so the upper right corner is free.
            axes.legend(loc="upper right", bbox_to_anchor=(1, 0.87), frameon=False, labelcolor="linecolor")
    return figure


def figure_bytes(figure: "Figure", kind: Literal["png", "pdf"]) -> bytes:
    """Return the figure as the bytes of a file; the same figure gives the same bytes."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    metadata: dict[str, Any] = {"Software": None} if kind == "png" else {"CreationDate": None}
    with rc_context({"pdf.fonttype": TRUETYPE}):
        figure.savefig(buffer, format=kind, dpi=DOTS_PER_INCH, facecolor=figure.get_facecolor(), metadata=metadata)
    return buffer.getvalue()


def style(theme: Theme) -> Any:
    """Return the matplotlib settings of a plot; the type of their keys differs between its versions."""
    return {
        "font.family": "sans-serif",
        "font.size": 11,
        "axes.edgecolor": theme.quiet,
        "axes.labelcolor": theme.ink,
        "axes.titlecolor": theme.ink,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": theme.quiet,
        "ytick.color": theme.quiet,
        "xtick.labelcolor": theme.ink,
        "ytick.labelcolor": theme.ink,
        "text.color": theme.ink,
        "figure.facecolor": theme.paper,
        "axes.facecolor": theme.paper,
        "text.parse_math": False,  # a run may be named with dollars
    }


def _draw_frame(axes: "Axes") -> None:
    """Count in percent from below, with a quiet grid."""
    from matplotlib.ticker import PercentFormatter

    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0, symbol=" %"))
    axes.grid(axis="y", color=LIGHT.grid, linewidth=0.8)
    axes.set_axisbelow(True)


def _draw_marks(axes: "Axes", budgets: Mapping[str, float], reach: float) -> None:
    """Draw a dotted line at each eps, its label above it and above any label it would touch."""
    ends: list[float] = []
    for number, (text, value) in enumerate(sorted(budgets.items(), key=lambda item: item[1])):
        label = text if number else f"ε = {text}"
        half = len(label) * LETTER_WIDTH * reach / 2
        level = next((row for row, end in enumerate(ends) if end < value - half), len(ends))
        ends[level : level + 1] = [value + half]
        top = 1.03 + level * LINE_HEIGHT
        axes.vlines(value, 0, top, color=LIGHT.quiet, linewidth=0.9, linestyle=(0, (2, 3)))
        axes.text(value, top + 0.01, label, ha="center", va="bottom", fontsize=9.5, color=LIGHT.quiet)
    axes.set_ylim(0, 1.05 + len(ends) * LINE_HEIGHT)


def _label_values(axes: "Axes", curve: Curve, budgets: Mapping[str, float], color: str) -> None:
    """Write the certified accuracy next to the curve at each mark, lifting one that would cover the last."""
    width = len("100.0 %") * LETTER_WIDTH * axes.get_xlim()[1]
    last_radius, last_height = -width, 0.0
    for value in sorted(budgets.values()):
        accuracy = float(curve.accuracy[np.searchsorted(curve.radius, value, side="right") - 1])
        height = accuracy + 0.015
        if value - last_radius < width and abs(height - last_height) < LINE_HEIGHT:
            height = last_height + LINE_HEIGHT
        last_radius, last_height = value, height
        axes.plot(value, accuracy, "o", color=color, markersize=6, markeredgecolor=LIGHT.paper, clip_on=False)
        axes.text(value, height, f" {100 * accuracy:.1f} %", fontsize=10.5, fontweight="bold", color=color)


def signed_margins(rows: Sequence[Row]) -> Float[np.ndarray, " n"]:
    """Return the finite margins, those of wrong images negative."""
    margins = np.array([row.margin if row.correct else -row.margin for row in rows], dtype=np.float64)
    return margins[np.isfinite(margins)]


def draw_margins(runs: Mapping[str, tuple[Sequence[Row], Sequence[Row]]]) -> "Figure":
    """Return a figure of the histograms of all runs: (training rows, test rows) of each, either may be empty."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    margins = {name: [signed_margins(rows) for rows in pair] for name, pair in runs.items()}
    every = np.concatenate([values for pair in margins.values() for values in pair] or [np.zeros(0)])
    edges = np.histogram_bin_edges(every, bins=BINS) if every.size else np.linspace(0, 1, BINS + 1)
    with rc_context(style(LIGHT)):
        figure = Figure(figsize=MARGINS_INCHES, layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for number, (axes, title) in enumerate(zip((left, right), PANELS, strict=True)):
            panel = {name: pair[number] for name, pair in margins.items()}
            _draw_panel(axes, title, panel, edges)
        left.set_ylabel("share of images")
        if len(runs) > 1:
            right.legend(frameon=False, labelcolor="linecolor")
    return figure


def _draw_panel(
    axes: "Axes", title: str, margins: Mapping[str, Float[np.ndarray, " n"]], edges: Float[np.ndarray, " m"]
) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set(title=title, xlabel="logit margin", xlim=(edges[0], edges[-1]))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))  # whole percents
    _draw_frame(axes)
    axes.axvline(0, color=LIGHT.quiet, linewidth=0.9, linestyle=(0, (2, 3)))
    for number, (name, values) in enumerate(margins.items()):
        if values.size:
            counts, _ = np.histogram(values, bins=edges)
            color = LIGHT.runs[number % len(LIGHT.runs)]
            axes.stairs(counts / values.size, edges, color=color, linewidth=1.6, label=name)
            axes.stairs(counts / values.size, edges, color=color, alpha=0.15, fill=True)
    if not any(values.size for values in margins.values()):
        axes.text(0.5, 0.5, "not certified", transform=axes.transAxes, ha="center", color=LIGHT.quiet)
