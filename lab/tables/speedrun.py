"""The short schedules beside what the field has published: ours where they were run, else "not run".

The recipes DATA/bronet-m-fast have no row in the paper. They are set beside its BRONet-M and BRONet-L (Table 1), and
beside what later work has published; differences are ours minus the other's.
"""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from bronet.errors import BronetError
from bronet.recipe.schema import parse_budget
from bronet.report.table import joined
from bronet.run.certificate import compute_statistics
from bronet.wording import ABSENT, duration_text
from lab.recipes import table_recipe
from lab.tables.cells import aligned, differences
from lab.tables.paper import NOT_RUN, row_label
from lab.tables.published import BUDGETS, PublishedRun, paper_rows

SHORT = "-fast"
"""How the names of short schedules end."""
RECIPES = {data: f"{data}/bronet-m{SHORT}" for data in ("cifar10", "cifar100")}
"""The recipe of each data set."""
COMPARISON_TABLE = 1
COMPARED = ("BRONet-M", "BRONet-L")


class Other(NamedTuple):
    """A published row: accuracies in percent, clean and at 36/255, 72/255 and 108/255."""

    name: str
    source: str
    shares: tuple[float, float, float, float]


LATER = {"cifar10": (Other("LipNeXt-64M", "Hu et al., ICLR 2026", (81.5, 71.2, 59.2, 45.9)),)}
"""What was published after the paper, by data set: arXiv 2601.18513, whose code is not public."""
KNOB = frozenset({"loss.emma_eps", "train.epochs"})
"""Settings that lead from one point of a recipe's trade-off to another."""


class Point(NamedTuple):
    """Runs of a recipe that have one EMMA budget and one number of epochs, by seed; none if it was not run."""

    budget: str
    label: str
    runs: list[PublishedRun]

    @property
    def shares(self) -> list[float]:
        """The mean of each column over the runs, in percent."""
        return [statistics.fmean(column) for column in self.columns]

    @property
    def columns(self) -> list[tuple[float, ...]]:
        """The percents of all runs, by column."""
        return list(zip(*(run.statistics.percents for run in self.runs), strict=True))


def speedrun_table(data: str, runs: Sequence[PublishedRun]) -> str:
    """Return the comparison for a data set as Markdown, with what ours rests on below it.

    The recipe's own point of the trade-off comes first, whether it was run or not, then the others.
    """
    recipe = _recipe_of(data)
    points = _points(recipe, runs)
    reached = [point for point in points if point.runs]
    minus = [f"{point.budget} minus this" for point in reached]
    cells = [["network", "from", "clean / 36 / 72 / 108", *minus]]
    for point in points:
        told = ["ours, proved", joined(point.shares)] if point.runs else ["ours", NOT_RUN]
        cells.append([point.label, *told, *(ABSENT for _ in minus)])
    for other in (*_of_paper(data), *LATER.get(data, ())):
        ahead = [differences(point.shares, other.shares) for point in reached]
        cells.append([other.name, other.source, joined(other.shares), *ahead])
    return "\n\n".join([aligned(cells).rstrip(), *(_described(point) for point in reached)]) + "\n"


def _points(recipe: str, runs: Sequence[PublishedRun]) -> list[Point]:
    """Return the points of a recipe's trade-off: its own, then those that whole test sets were certified at."""
    named = table_recipe(recipe)
    own = (named.loss.emma_eps, named.train.epochs)
    found: dict[tuple[str, int], list[PublishedRun]] = {own: []}
    for run in sorted(runs, key=lambda run: run.recipe.train.seed):
        if run.recipe.name == recipe and run.whole and run.changed is not None and KNOB.issuperset(run.changed):
            found.setdefault((run.recipe.loss.emma_eps, run.recipe.train.epochs), []).append(run)
    points = []
    for eps, epochs in sorted(found, key=lambda place: (place != own, -parse_budget(place[0]), place[1])):
        label = f"`{recipe}`, {eps}" if (eps, epochs) == own else f"the same, {eps}, {epochs} epochs"
        points.append(Point(eps, label, found[eps, epochs]))
    return points


def _recipe_of(data: str) -> str:
    if data not in RECIPES:
        raise BronetError(f"a block speedrun must name one of {', '.join(RECIPES)}, got {data!r}")
    return RECIPES[data]


def _of_paper(data: str) -> list[Other]:
    rows = [row for row in paper_rows(COMPARISON_TABLE) if row.group == data and row.row.startswith(COMPARED)]
    source, found = f"the paper, Table {COMPARISON_TABLE}", []
    for row in rows:
        clean, (at_36, at_72, at_108) = row.clean, row.certified
        assert clean is not None  # the paper prints all four numbers of these rows
        assert at_36 is not None
        assert at_72 is not None
        assert at_108 is not None
        found.append(Other(row_label(row), source, (clean, at_36, at_72, at_108)))
    return found


def _described(point: Point) -> str:
    """Return seeds, spread and times of the runs at a point."""
    runs = point.runs
    seeds = ", ".join(str(run.recipe.train.seed) for run in runs)
    told = f"{point.budget}: seed {seeds}." if len(runs) == 1 else f"{point.budget}: the mean of seeds {seeds}"
    if len(runs) > 1:
        spread = [statistics.stdev(column) for column in point.columns]
        told += f"; standard deviation of one run {joined(spread)}."
    return f"{told} " + " ".join(f"{_times(run)} {_naively(run)}" for run in runs)


def _times(run: PublishedRun) -> str:
    training, certificate = duration_text(run.evidence.training_seconds), run.evidence.certificate
    trained_on = str(run.evidence.record.get("device", "a device unknown"))
    place = "a CPU" if certificate.device == "cpu" else certificate.device
    return (
        f"`{run.folder}`: training {training} on {trained_on}, proof and {certificate.images:,} images "
        f"{duration_text(certificate.seconds)} on {'the same' if place == trained_on else place}."
    )


def _naively(run: PublishedRun) -> str:
    """Return how many images more the literature's way, which is no proof, would have called certified."""
    naive = compute_statistics(run.evidence.naive().rows, BUDGETS)
    images = run.evidence.certificate.images
    pairs = zip(naive.certified.values(), run.statistics.certified.values(), strict=True)
    more = [f"{round(images * (theirs - ours)):+d}" for theirs, ours in pairs]
    return f"Float32 and power iteration, which prove nothing, would have reported {' / '.join(more)} images."
