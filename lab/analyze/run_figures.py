"""Figures from published runs: clean against certified accuracy (1), curves (3) and margins (12) of three losses.

Figure 1 has a circle for each network on CIFAR-10, its area the number of parameters: the rows of Table 1, and our runs
of named recipes that certify the whole test set. The paper does not name its vertical axis: we take certified accuracy
at 36/255. Figures 3 and 12 set CE, CE + CR and LA side by side on CIFAR-100.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bronet.errors import BronetError
from bronet.models import build_model
from bronet.report.figures import COLOURS, GRID, QUIET, STYLE, draw_curve, draw_margins
from lab.tables.published import BUDGETS, PublishedRun, paper_rows, runs_of

DATA = "cifar10"
TABLE = 1
MILLION = 1e6
AREA_PER_MILLION = 5.0
LEGEND_SIZES = (10, 100)
LEGEND_AREA = 70
FONT_SIZE = 8.5
LETTER = 0.6 * FONT_SIZE
"""Width of a letter in points, on average."""
DISTANCES = (3, 12, 24, 38, 54)
"""Points between a circle and its name, nearest first."""
POINTS_PER_INCH = 72
OURS, THEIRS, PAPERS = "this project", "other works, as quoted", "the paper"
COLORS = {THEIRS: QUIET, PAPERS: COLOURS[0], OURS: COLOURS[1]}


class Row(NamedTuple):
    """One circle: accuracies in percent, parameters in millions."""

    source: str
    name: str
    clean: float
    certified_36: float
    millions: float


def measure(runs: Sequence[PublishedRun]) -> list[Row]:
    """Return the circles of the paper, then ours."""
    rows = []
    for row in paper_rows(TABLE):
        if row.group == DATA and row.clean is not None and row.certified[0] is not None:
            source = PAPERS if row.recipe and "BRONet" in row.row else THEIRS
            rows.append(Row(source, row.row, row.clean, row.certified[0], float(row.parameters.removesuffix("M"))))
    for run in runs:
        if run.recipe.data.name == DATA and not run.remark:
            certified = next(iter(run.statistics.certified.values()))
            clean = run.statistics.clean_accuracy
            name = run.recipe.name.removeprefix(f"{DATA}/")
            rows.append(Row(OURS, name, 100 * clean, 100 * certified, parameters(run) / MILLION))
    return rows


def parameters(run: PublishedRun) -> int:
    """Return how many parameters a run's network has."""
    model = build_model(run.recipe.model, run.recipe.data.spec(), device="meta")
    return sum(parameter.numel() for parameter in model.parameters())


def draw(rows: Sequence[Row]) -> Figure:
    """Return Figure 1 with our points."""
    if not rows:
        raise BronetError("a teaser needs at least one row, got none")
    with rc_context(STYLE):
        figure = Figure(figsize=(8.4, 5.2), layout="constrained")
        axes = figure.add_subplot()
        for source, color in COLORS.items():
            chosen = [row for row in rows if row.source == source]
            if not chosen:
                continue
            axes.scatter(
                [row.clean for row in chosen],
                [row.certified_36 for row in chosen],
                s=[AREA_PER_MILLION * row.millions for row in chosen],
                color=color,
                alpha=0.45,
                edgecolor=color,
            )
            axes.scatter([], [], s=LEGEND_AREA, color=color, alpha=0.45, edgecolor=color, label=source)
        for size in LEGEND_SIZES:
            axes.scatter([], [], s=AREA_PER_MILLION * size, color=GRID, label=f"{size}M parameters")
        axes.set(xlabel="clean accuracy, %", ylabel="certified accuracy at 36/255, %", title="CIFAR-10")
        axes.margins(0.1)
        axes.grid(color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.legend(frameon=False, loc="upper left", fontsize=9, labelspacing=1.0)
        figure.draw_without_rendering()  # fixes where a point lies on the paper
        _label(axes, rows, POINTS_PER_INCH / figure.dpi)
    return figure


class Box(NamedTuple):
    """A rectangle on the paper, in points."""

    left: float
    bottom: float
    right: float
    top: float

    def meets(self, other: "Box") -> bool:
        """Whether the two share a point."""
        beside = self.right < other.left or other.right < self.left
        return not (beside or self.top < other.bottom or other.top < self.bottom)


def _label(axes: Axes, rows: Sequence[Row], points_per_dot: float) -> None:
    """Write every name near its circle, at the first place where it touches no other name and no circle's middle."""
    centres = [points_per_dot * axes.transData.transform((row.clean, row.certified_36)) for row in rows]
    radii = [math.sqrt(AREA_PER_MILLION * row.millions) / 2 for row in rows]
    taken = [_around(x, y, r, r) for (x, y), r in zip(centres, radii, strict=True)]
    for row, (x, y), radius in zip(rows, centres, radii, strict=True):
        width, height = LETTER * len(row.name), 1.3 * FONT_SIZE
        places = [
            ((radius + away + width / 2) * math.cos(turn), (radius + away + height / 2) * math.sin(turn))
            for away in DISTANCES
            for turn in np.linspace(-math.pi / 2, 3 * math.pi / 2, 16, endpoint=False)
        ]
        boxes = [_around(x + a, y + b, width, height) for a, b in places]
        free = (number for number, box in enumerate(boxes) if not any(box.meets(other) for other in taken))
        chosen = next(free, 0)
        taken.append(boxes[chosen])
        axes.annotate(
            row.name,
            (row.clean, row.certified_36),
            xytext=places[chosen],
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=FONT_SIZE,
            color=COLORS[row.source],
            arrowprops={"arrowstyle": "-", "color": QUIET, "linewidth": 0.5, "shrinkA": 0, "shrinkB": radius},
        )


def _around(x: float, y: float, width: float, height: float) -> Box:
    return Box(x - width / 2, y - height / 2, x + width / 2, y + height / 2)


LOSS_TABLE = 6
"""The table whose three rows the figures show."""
FURTHEST = 1.0
"""Radius at which Figure 3 ends: beyond it almost no image is certified."""


def loss_runs(runs: Sequence[PublishedRun]) -> dict[str, PublishedRun]:
    """Return the run of each loss, the one of the smallest seed; raise if none was run."""
    chosen = {row.row: runs_of(row.recipe, list(runs)) for row in paper_rows(LOSS_TABLE)}
    found = {name: mine[0] for name, mine in chosen.items() if mine}
    if not found:
        names = ", ".join(row.recipe for row in paper_rows(LOSS_TABLE))
        raise BronetError(f"figures 3 and 12 need a published run of at least one of {names}; found none")
    return found


def draw_figure(number: int, runs: Sequence[PublishedRun]) -> Figure:
    """Return Figure 3 (curves) or Figure 12 (margins; of training images, where those were certified)."""
    found = loss_runs(runs)
    if number == 3:
        return draw_curve({name: run.evidence.rows for name, run in found.items()}, BUDGETS, furthest=FURTHEST)
    if number == 12:
        return draw_margins({name: (run.evidence.train_rows, run.evidence.rows) for name, run in found.items()})
    raise BronetError(f"figure must be 3 or 12, got {number}; python -m lab analyze draws 1, 10, 11 and 13")
