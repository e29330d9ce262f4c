"""CE, CE + CR and LA side by side on CIFAR-100: certified accuracy over the radius and margins (Figures 3 and 12)."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from bronet.errors import BronetError
from bronet.report.figures import draw_curve, draw_margins
from lab.tables.paper_rows import paper_rows
from lab.tables.published import BUDGETS, PublishedRun, runs_of

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
