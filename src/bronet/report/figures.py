"""The figures of a report: certified accuracy over the radius (Figure 3) and histograms of the margin (Figure 12).

The curve is an exact step function of the rows: at radius r it is the share of images that are correct with a radius
larger than r, so it falls by one image at each radius. Nothing is smoothed or sampled.

A row keeps the margin of the prediction to its runner-up. In the histograms wrong images are drawn at minus that
margin, which is an upper bound on the margin of their label, not that margin itself.

Files are drawn by matplotlib (`draw_...`). The page's charts are drawn by the browser (`..._chart`), so that text keeps
its size on a phone and colours follow the theme: the shapes are one SVG that is stretched to the width there is; ticks
and labels are text beside it. Its curves are exact up to a two-thousandth of the chart's width.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape
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

INK, QUIET, GRID, PAPER = "#1c2430", "#667085", "#e6e9ee", "#ffffff"
COLOURS = ("#2458c7", "#c2410c", "#0f7b5f", "#7a3fb5", "#a3174f")
"""Of the runs; further runs start again. The page's style has as many."""
STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "text.parse_math": False,  # a run may be named with dollars
}
"""The matplotlib settings of a figure; the type of their keys differs between its versions."""
CURVE_INCHES = (7.2, 4.2)
MARGINS_INCHES = (8.4, 3.6)
DOTS_PER_INCH = 200
LETTER_WIDTH = 0.015
"""Width of a letter, as a share of the axis: generous, so that labels stay apart."""
LINE_HEIGHT = 0.065
"""Height of a line of text in units of accuracy."""
TRUETYPE = 42
"""PDF font type whose text can be searched and edited."""
KINDS: tuple[Literal["png", "pdf"], ...] = ("png", "pdf")
RADIUS_LABEL = "l2 radius in pixel space [0, 1]"
ROOM = 1.04
"""Part of an axis beyond what is drawn along it."""
BINS = 40
PANELS = ("training images", "test images")
UNITS = 2000
"""Units of the page's drawing on either side."""
MOST_TICKS = 5
Lines = Mapping[str, tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]]
"""Step functions by name: corners from left to right; each height holds up to the next corner."""


class Curve(NamedTuple):
    """Corners of a right-continuous step function: `accuracy[i]` holds from `radius[i]` to the next."""

    radius: Float[np.ndarray, " n"]
    accuracy: Float[np.ndarray, " n"]

    def up_to(self, end: float) -> "Curve":
        """Return the curve with a last corner at this radius, if that lies beyond it."""
        last = max(end, float(self.radius[-1]))
        return Curve(np.append(self.radius, last), np.append(self.accuracy, self.accuracy[-1]))


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


def _furthest(curves: Sequence[Curve], radii: Iterable[float]) -> float:
    """Return where the axis of the radius ends; at 1 if no image has a positive finite radius."""
    return ROOM * max([*radii, *(float(curve.radius[-1]) for curve in curves)], default=0.0) or 1.0


def signed_margins(rows: Sequence[Row]) -> Float[np.ndarray, " n"]:
    """Return the finite margins, those of wrong images negative."""
    margins = np.array([row.margin if row.correct else -row.margin for row in rows], dtype=np.float64)
    return margins[np.isfinite(margins)]


def histograms(sets: Iterable[Sequence[Row]]) -> tuple[Float[np.ndarray, " n"], list[Float[np.ndarray, " m"] | None]]:
    """Return edges in common and, of each set of rows, the share of its margins in each bin: None where it has none."""
    margins = [signed_margins(rows) for rows in sets]
    edges = np.histogram_bin_edges(np.concatenate([*margins, np.zeros(0)]), bins=BINS)
    return edges, [np.histogram(own, bins=edges)[0] / own.size if own.size else None for own in margins]


def draw_curve(runs: Mapping[str, Sequence[Row]], eps: Sequence[str], *, furthest: float | None = None) -> "Figure":
    """Return a figure of the curves of all runs, up to `furthest`, with a mark at each eps ("36/255", ...)."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    curves = {name: certified_curve(rows) for name, rows in runs.items()}
    budgets = {text: parse_budget(text, name="eps") for text in eps}
    reach = furthest or _furthest(list(curves.values()), budgets.values())
    with rc_context(STYLE):
        figure = Figure(figsize=CURVE_INCHES, layout="constrained")
        axes = figure.add_subplot()
        _draw_frame(axes)
        axes.set(xlim=(0, reach), xlabel=RADIUS_LABEL, ylabel="images proved correct")
        axes.set_yticks(np.linspace(0, 1, 6))
        axes.tick_params(length=3)
        axes.spines["left"].set_bounds(0, 1)
        _draw_marks(axes, budgets, reach)
        for number, (name, curve) in enumerate(curves.items()):
            color, drawn = COLOURS[number % len(COLOURS)], curve.up_to(reach)
            line = axes.plot(*drawn, drawstyle="steps-post", color=color, linewidth=2.0, label=name)
            line[0].set_solid_joinstyle("miter")
            if len(curves) == 1:
                axes.fill_between(*drawn, step="post", color=color, alpha=0.08, linewidth=0)
                _label_values(axes, curve, budgets, color)
        if len(curves) > 1:
            # Curves only fall, so the upper right corner is free.
            axes.legend(loc="upper right", bbox_to_anchor=(1, 0.87), frameon=False, labelcolor="linecolor")
    return figure


def draw_margins(runs: Mapping[str, tuple[Sequence[Row], Sequence[Row]]]) -> "Figure":
    """Return a figure of the histograms of all runs: (training rows, test rows) of each, either may be empty."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    edges, shares = histograms(rows for pair in runs.values() for rows in pair)
    with rc_context(STYLE):
        figure = Figure(figsize=MARGINS_INCHES, layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for panel, (axes, title) in enumerate(zip(panels, PANELS, strict=True)):
            own = shares[panel :: len(PANELS)]
            axes.set(title=title, xlabel="logit margin", xlim=(edges[0], edges[-1]))
            axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))  # whole percents
            _draw_frame(axes)
            axes.axvline(0, color=QUIET, linewidth=0.9, linestyle=(0, (2, 3)))
            for number, (name, share) in enumerate(zip(runs, own, strict=True)):
                if share is not None:
                    color = COLOURS[number % len(COLOURS)]
                    axes.stairs(share, edges, color=color, linewidth=1.6, label=name)
                    axes.stairs(share, edges, color=color, alpha=0.15, fill=True)
            if all(share is None for share in own):
                axes.text(0.5, 0.5, "not certified", transform=axes.transAxes, ha="center", color=QUIET)
        panels[0].set_ylabel("share of images")
        if len(runs) > 1:
            panels[1].legend(frameon=False, labelcolor="linecolor")
    return figure


def figure_bytes(figure: "Figure", kind: Literal["png", "pdf"]) -> bytes:
    """Return the figure as the bytes of a file; the same figure gives the same bytes."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    metadata: dict[str, Any] = {"Software": None} if kind == "png" else {"CreationDate": None}
    with rc_context({"pdf.fonttype": TRUETYPE}):
        figure.savefig(buffer, format=kind, dpi=DOTS_PER_INCH, facecolor=figure.get_facecolor(), metadata=metadata)
    return buffer.getvalue()


def _draw_frame(axes: "Axes") -> None:
    """Count in percent from below, with a quiet grid."""
    from matplotlib.ticker import PercentFormatter

    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0, symbol=" %"))
    axes.grid(axis="y", color=GRID, linewidth=0.8)
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
        axes.vlines(value, 0, top, color=QUIET, linewidth=0.9, linestyle=(0, (2, 3)))
        axes.text(value, top + 0.01, label, ha="center", va="bottom", fontsize=9.5, color=QUIET)
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
        axes.plot(value, accuracy, "o", color=color, markersize=6, markeredgecolor=PAPER, clip_on=False)
        axes.text(value, height, f" {100 * accuracy:.1f} %", fontsize=10.5, fontweight="bold", color=color)


def curve_chart(runs: Mapping[str, Sequence[Row]], radii: Sequence[float]) -> str:
    """Return certified accuracy over the radius of one run or several, with a dotted line at each radius."""
    curves = {name: certified_curve(rows) for name, rows in runs.items()}
    end = _furthest(list(curves.values()), radii)
    lines: Lines = {name: curve.up_to(end) for name, curve in curves.items()}
    return _chart(lines, end, 1.0, marks=radii, label=RADIUS_LABEL, what="proved correct", filled=len(runs) == 1)


def margins_chart(sets: Mapping[str, Sequence[Row]]) -> str:
    """Return the histograms of the margins of sets of rows; empty sets are left out. "" where nothing is left."""
    edges, shares = histograms(sets.values())
    found = {name: share for name, share in zip(sets, shares, strict=True) if share is not None}
    if not found:
        return ""
    lines: Lines = {name: (edges, np.append(share, 0.0)) for name, share in found.items()}
    top = ROOM * max(float(share.max()) for share in found.values())
    return _chart(lines, float(edges[-1]), top, marks=[0.0], label="margin", what="share of images", filled=True)


def _chart(
    lines: Lines, high: float, top: float, *, marks: Sequence[float], label: str, what: str, filled: bool
) -> str:
    """Return step functions up to `high` and `top`, dotted lines at the marks, and perhaps the ground below filled."""
    low = min(float(x[0]) for x, _ in lines.values())
    width = high - low or 1.0
    dots = [(at - low) / width for at in marks if low <= at <= high]
    levels = [(at / top, f"{100 * at:g} %") for at in ticks(0.0, top)]
    below = [((at - low) / width, f"{at:g}") for at in ticks(low, high)]
    shapes = [
        *(f'<path class="grid" d="M0 {UNITS - UNITS * level:.0f}H{UNITS}"/>' for level, _ in levels),
        *(f'<path class="mark" d="M{UNITS * across:.0f} 0V{UNITS}"/>' for across in dots),
        *(_shape(number, (x - low) / width, y / top, filled) for number, (x, y) in enumerate(lines.values())),
    ]
    texts = [
        *(f'<span class="y" style="bottom:{100 * level:.2f}%">{text}</span>' for level, text in levels),
        *(f'<span class="x" style="left:{100 * across:.2f}%">{text}</span>' for across, text in below),
    ]
    legend = "".join(
        f'<li class="run{number % len(COLOURS)}"><svg viewBox="0 0 28 8"><path class="line" d="M0 4H28"/></svg>'
        f"{escape(name)}</li>"
        for number, name in enumerate(lines)
    )
    return (
        f'<div class="chart"><p class="what">{escape(what)}</p>'
        f'<div class="plot" role="img" aria-label="{escape(what)} over {escape(label)}">'
        f'<svg viewBox="0 0 {UNITS} {UNITS}" preserveAspectRatio="none">{"".join(shapes)}</svg>'
        f'{"".join(texts)}</div><p class="axis">{escape(label)}</p>'
        + (f'<ul class="legend">{legend}</ul>' if len(lines) > 1 else "")
        + "</div>"
    )


def _shape(number: int, x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], filled: bool) -> str:
    """Return a line, and the ground below it; corners that fall on one another are drawn once."""
    columns, heights = np.rint(UNITS * x).astype(int), np.rint(UNITS * (1 - y)).astype(int)
    last = np.append(columns[1:] != columns[:-1], True)  # of the corners in one column the last one counts
    (first, top), *corners = zip(columns[last].tolist(), heights[last].tolist(), strict=True)
    path = f"M{first} {top}" + "".join(f"H{column}V{height}" for column, height in corners)
    ground = f'<path class="ground" d="{path}V{UNITS}H{first}Z"/>' if filled else ""
    return f'<g class="run{number % len(COLOURS)}">{ground}<path class="line" d="{path}"/></g>'


def ticks(low: float, high: float) -> list[float]:
    """Return a few round numbers in the range, whose distance is 1, 2 or 5 times a power of ten."""
    rough = (high - low) / MOST_TICKS or 1.0
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    numbers = range(int(np.ceil(low / step)), int(np.floor(high / step)) + 1)
    return [float(f"{number * step:.6g}") for number in numbers]
