"""Drawing on a plain sheet: boxes, arrows, words in a few named colours, and files that come out the same every time.

On the site each colour follows the theme (docs/site.css has the dark ones).
"""

import io
import itertools
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse, FancyArrowPatch, FancyBboxPatch, Polygon, Rectangle

COLOURS = {
    "paper": "#ffffff",
    "ink": "#1c2430",
    "soft": "#667085",
    "line": "#d9dee7",
    "panel": "#f3f5f8",
    "blue": "#2458c7",
    "blue-fill": "#dbe5fb",
    "orange": "#c2410c",
    "orange-fill": "#fbe3d6",
    "green": "#0f7b5f",
    "green-fill": "#d5efe6",
    "violet": "#7a3fb5",
    "violet-fill": "#eadff6",
}
PAPER, INK, SOFT, LINE, PANEL = (COLOURS[name] for name in ("paper", "ink", "soft", "line", "panel"))
HUES = ("blue", "orange", "green", "violet")


def stroke(hue: str) -> str:
    """Return the strong shade of a hue."""
    return COLOURS[hue]


def fill(hue: str) -> str:
    """Return the pale shade of a hue."""
    return COLOURS[f"{hue}-fill"]


WIDTH = 8.0
"""Inches; the unit of a sheet is a hundredth of its width."""
UNITS = 100.0

# Letters as outlines: the same picture whatever fonts the reader has.
STYLE: dict[Any, Any] = {
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
}


def svg(figure: Figure, name: str) -> str:
    """Return the figure as SVG text, without date or random names."""
    buffer = io.StringIO()
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


class Sheet:
    """A sheet of paper, 100 units wide, y upwards."""

    def __init__(self, height: float) -> None:
        self.figure = Figure(figsize=(WIDTH, WIDTH * height / UNITS), facecolor=PAPER)
        self.axes: Axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(0, UNITS), ylim=(0, height))
        self.axes.set_axis_off()

    def words(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 9,
        colour: str = INK,
        anchor: str = "center",
        bold: bool = False,
    ) -> None:
        """Write text with its middle (or left or right end) at a point."""
        weight = "bold" if bold else "normal"
        self.axes.text(x, y, text, size=size, color=colour, ha=anchor, va="center", weight=weight, linespacing=1.35)

    def box(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        text: str = "",
        *,
        hue: str = "blue",
        size: float = 9,
        bold: bool = False,
    ) -> None:
        """Draw a rounded box around the point (x, y), with words in it."""
        shape = FancyBboxPatch(
            (x - w / 2, y - h / 2),
            w,
            h,
            boxstyle="round,pad=0,rounding_size=0.9",
            facecolor=fill(hue),
            edgecolor=stroke(hue),
            linewidth=1.1,
        )
        self.axes.add_patch(shape)
        self.words(x, y, text, size=size, bold=bold)

    def panel(self, x: float, y: float, w: float, h: float, colour: str, *, edge: str = "none") -> None:
        """Draw a rectangle whose lower left corner is (x, y)."""
        self.axes.add_patch(Rectangle((x, y), w, h, facecolor=colour, edgecolor=edge, linewidth=1.0))

    def hatch(self, x: float, y: float, w: float, h: float) -> None:
        """Draw a rectangle of what is dropped: dashed outline and thin diagonals."""
        shape = Rectangle((x, y), w, h, facecolor="none", edgecolor=SOFT, linewidth=0.9, linestyle=(0, (3, 2)))
        shape.set_hatch("////")
        with mpl.rc_context({"hatch.linewidth": 0.4}):
            self.axes.add_patch(shape)

    def arrow(
        self, start: tuple[float, float], end: tuple[float, float], *, colour: str = INK, bend: float = 0.0
    ) -> None:
        """Draw an arrow."""
        self.axes.add_patch(
            FancyArrowPatch(
                start,
                end,
                arrowstyle="-|>",
                mutation_scale=9,
                linewidth=1.1,
                color=colour,
                shrinkA=0,
                shrinkB=0,
                connectionstyle=f"arc3,rad={bend}",
            )
        )

    def path(self, points: Sequence[tuple[float, float]], *, colour: str = INK) -> None:
        """Draw a line through points that ends in an arrow."""
        *rest, last = points
        for a, b in itertools.pairwise(rest):
            self.axes.plot(*zip(a, b, strict=True), color=colour, linewidth=1.1, solid_capstyle="round")
        self.arrow(rest[-1], last, colour=colour)

    def slab(self, x: float, y: float, w: float, h: float, depth: float, *, hue: str) -> None:
        """Draw a block of activations: front face w x h with its lower left corner at (x, y), and its depth."""
        d = depth
        faces = [
            [(x, y), (x + w, y), (x + w, y + h), (x, y + h)],
            [(x, y + h), (x + w, y + h), (x + w + d, y + h + d), (x + d, y + h + d)],
            [(x + w, y), (x + w + d, y + d), (x + w + d, y + h + d), (x + w, y + h)],
        ]
        for corners in faces:
            self.axes.add_patch(
                Polygon(corners, facecolor=fill(hue), edgecolor=stroke(hue), linewidth=1.0, joinstyle="round")
            )

    def circle(self, x: float, y: float, r: float, text: str, *, hue: str) -> None:
        """Draw a round node with a sign in it."""
        self.axes.add_patch(Ellipse((x, y), 2 * r, 2 * r, facecolor=fill(hue), edgecolor=stroke(hue), linewidth=1.1))
        self.words(x, y, text, size=10)
