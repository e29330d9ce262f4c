"""Charts of the HTML page: drawn by the browser, so that text keeps its size on a phone and colours follow the theme.

The shapes are one SVG that is stretched to the width there is; ticks and labels are text beside it. Curves are exact up
to a two-thousandth of the chart's width.
"""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from bronet.report.figures import BINS, Curve, certified_curve, signed_margins
from bronet.run.certificate import Row

GRID = 2000
"""Units of the drawing on either side."""
MOST_TICKS = 5
COLOURS = 5
"""Colours of lines in the style of the page; further lines start again."""
ROOM = 1.04
"""Part of the axis beyond the last corner."""


class Line(NamedTuple):
    """A step function: corners from left to right; each height holds up to the next corner. It may be filled."""

    name: str
    x: Float[np.ndarray, " n"]
    y: Float[np.ndarray, " n"]
    filled: bool = False


def curve_chart(runs: Sequence[tuple[str, Sequence[Row]]], radii: Sequence[float]) -> str:
    """Return certified accuracy over the radius of one run or several, with a dotted line at each radius."""
    curves: list[tuple[str, Curve]] = [(name, certified_curve(rows)) for name, rows in runs]
    end = ROOM * max([*radii, *(float(curve.radius[-1]) for _, curve in curves)], default=0.0) or 1.0
    lines = [
        Line(name, np.append(curve.radius, end), np.append(curve.accuracy, curve.accuracy[-1]), len(runs) == 1)
        for name, curve in curves
    ]
    return _chart(lines, (0.0, end), 1.0, marks=radii, label="l2 radius in pixel space [0, 1]", what="proved correct")


def margins_chart(sets: Sequence[tuple[str, Sequence[Row]]]) -> str:
    """Return the histograms of the margins of sets of rows; empty sets are left out. "" where nothing is left."""
    margins = {name: values for name, rows in sets if (values := signed_margins(rows)).size}
    if not margins:
        return ""
    edges = np.histogram_bin_edges(np.concatenate(list(margins.values())), bins=BINS)
    shares = {name: np.histogram(values, bins=edges)[0] / values.size for name, values in margins.items()}
    lines = [Line(name, edges, np.append(share, 0.0), filled=True) for name, share in shares.items()]
    top = ROOM * max(float(share.max()) for share in shares.values())
    return _chart(lines, (float(edges[0]), float(edges[-1])), top, marks=[0.0], label="margin", what="share of images")


def _chart(
    lines: Sequence[Line], span: tuple[float, float], top: float, *, marks: Sequence[float], label: str, what: str
) -> str:
    low, high = span
    width = high - low or 1.0

    def across(value: float) -> float:
        return (value - low) / width

    levels = ticks(0.0, top)
    grid = "".join(f'<path class="grid" d="M0 {GRID - GRID * level / top:.0f}H{GRID}"/>' for level in levels)
    dotted = "".join(f'<path class="mark" d="M{GRID * across(at):.0f} 0V{GRID}"/>' for at in marks if low <= at <= high)
    shapes = "".join(_shape(number, line, (line.x - low) / width, line.y / top) for number, line in enumerate(lines))
    heights = "".join(
        f'<span class="y" style="bottom:{100 * level / top:.2f}%">{100 * level:g} %</span>' for level in levels
    )
    below = "".join(f'<span class="x" style="left:{100 * across(at):.2f}%">{at:g}</span>' for at in ticks(low, high))
    legend = "".join(
        f'<li class="run{number % COLOURS}"><svg viewBox="0 0 28 8"><path class="line" d="M0 4H28"/></svg>'
        f"{escape(line.name)}</li>"
        for number, line in enumerate(lines)
    )
    return (
        f'<div class="chart"><p class="what">{escape(what)}</p>'
        f'<div class="plot" role="img" aria-label="{escape(what)} over {escape(label)}">'
        f'<svg viewBox="0 0 {GRID} {GRID}" preserveAspectRatio="none">{grid}{dotted}{shapes}</svg>'
        f'{heights}{below}</div><p class="axis">{escape(label)}</p>'
        + (f'<ul class="legend">{legend}</ul>' if len(lines) > 1 else "")
        + "</div>"
    )


def _shape(number: int, line: Line, x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> str:
    """Return a line, and the ground below it; corners that fall on one another are drawn once."""
    columns, heights = np.rint(GRID * x).astype(int), np.rint(GRID * (1 - y)).astype(int)
    last = np.append(columns[1:] != columns[:-1], True)  # of the corners in one column the last one counts
    columns, heights = columns[last], heights[last]
    path = f"M{columns[0]} {heights[0]}" + "".join(
        f"H{column}V{height}" for column, height in zip(columns[1:], heights[1:], strict=True)
    )
    ground = f'<path class="ground" d="{path}V{GRID}H{columns[0]}Z"/>' if line.filled else ""
    return f'<g class="run{number % COLOURS}">{ground}<path class="line" d="{path}"/></g>'


def ticks(low: float, high: float) -> list[float]:
    """Return a few round numbers in the range, whose distance is 1, 2 or 5 times a power of ten."""
    rough = (high - low) / MOST_TICKS or 1.0
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    numbers = range(int(np.ceil(low / step)), int(np.floor(high / step)) + 1)
    return [float(f"{number * step:.6g}") for number in numbers]
