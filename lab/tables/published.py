"""What the tables set side by side: the rows that the paper prints, and the runs that we published.

A row of Tables 1 to 6 and 9 to 16, numbered in the order of the paper's source, has the recipe that trains it; rows
quoted from the literature have none. A published run is a folder with a recipe, a certificate and its rows, packed or
not. It stands beside a row of the paper only if its recipe is the named one, up to what does not change the experiment
(seed, precision, what is kept on the way), and if the whole test set was certified. Any other run says what differs.
"""

import csv
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

from bronet.errors import BronetError
from bronet.recipe.schema import Recipe
from bronet.recipe.text import differing_keys, from_text
from bronet.report.evidence import Evidence, read_evidence
from bronet.run.certificate import Statistics, compute_statistics
from lab.packed import unpacked
from lab.recipes import table_recipe

FILE = "paper_tables.csv"


@dataclass(frozen=True, kw_only=True)
class PaperRow:
    """One printed row. `certified` is at 36/255, 72/255 and 108/255; `others` are the table's further columns."""

    table: int
    group: str
    row: str
    recipe: str
    parameters: str
    clean: float | None
    certified: tuple[float | None, float | None, float | None]
    others: dict[str, float]


def paper_tables() -> tuple[int, ...]:
    """Return the numbers of the tables that have rows, in order."""
    return tuple(dict.fromkeys(row.table for row in _rows()))


def paper_rows(table: int | None = None) -> tuple[PaperRow, ...]:
    """Return the rows of one table, or of all."""
    if table is None:
        return _rows()
    if table not in paper_tables():
        raise BronetError(f"table must be one of {', '.join(map(str, paper_tables()))}, got {table}")
    return tuple(row for row in _rows() if row.table == table)


@lru_cache(maxsize=1)
def _rows() -> tuple[PaperRow, ...]:
    text = resources.files("lab.tables").joinpath(FILE).read_text(encoding="utf-8")
    return tuple(_row(cells) for cells in csv.DictReader(text.splitlines()))


def _row(cells: dict[str, str]) -> PaperRow:
    others = (entry.split("=") for entry in cells["others"].split(";") if entry)
    return PaperRow(
        table=int(cells["table"]),
        group=cells["group"],
        row=cells["row"],
        recipe=cells["recipe"],
        parameters=cells["parameters"],
        clean=_number(cells["clean"]),
        certified=(_number(cells["certified_36"]), _number(cells["certified_72"]), _number(cells["certified_108"])),
        others={name: float(value) for name, value in others},
    )


def _number(text: str) -> float | None:
    return float(text) if text else None


RESULTS = Path(__file__).parents[1] / "results"
BUDGETS = ("36/255", "72/255", "108/255")
TEST_IMAGES = {"digits": 500, "cifar10": 10_000, "cifar100": 10_000, "tiny-imagenet": 10_000, "imagenet": 50_000}
TRAIN_IMAGES = {"digits": 1297, "cifar10": 50_000, "cifar100": 50_000, "tiny-imagenet": 100_000, "imagenet": 1_281_167}
FREE_KEYS = frozenset(
    {"train.seed", "train.precision", "train.checkpoint_every", "train.keep_checkpoints", "certify.eps"}
)
"""Settings in which a run may differ from the named recipe and still be a run of it."""


@dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """One folder; `changed` are the settings that differ from its named recipe, None if no recipe has that name."""

    folder: str
    recipe: Recipe
    evidence: Evidence
    statistics: Statistics
    changed: tuple[str, ...] | None

    @property
    def whole(self) -> bool:
        """Whether all test images were certified."""
        return self.evidence.certificate.images == TEST_IMAGES.get(self.recipe.data.name)

    @property
    def remark(self) -> str:
        """Why this is no full run of a named recipe; empty if it is one."""
        if self.changed is None:
            return "no named recipe"
        several = f"{len(self.changed)} settings changed, such as " if len(self.changed) > 1 else "changed: "
        remarks = [f"{several}{self.changed[0]}"] if self.changed else []
        if not self.whole:
            remarks.append(f"the first {self.evidence.certificate.images:,} test images only")
        return "; ".join(remarks)

    @property
    def seconds_per_epoch(self) -> float | None:
        """Seconds of training per epoch, where the record says how long it took."""
        seconds = self.evidence.training_seconds
        return None if seconds is None else seconds / self.recipe.train.epochs

    def attacked(self, attack: str, norm: str, eps: str) -> tuple[float, int] | None:
        """Return the accuracy that an attack left, and on how many images; None if it was not run."""
        for facts in self.evidence.attacks:
            asked = (facts.attack, facts.norm, facts.eps) == (attack, norm, eps)
            if asked and facts.robust_accuracy is not None and facts.images is not None:
                return facts.robust_accuracy, facts.images
        return None


def published_runs(results: Path) -> list[PublishedRun]:
    """Return every published run below a folder, in the order of their paths; raise where one contradicts itself."""
    if not results.is_dir():
        raise BronetError(f"--results must be a folder with published runs, got {results}; see python -m lab publish")
    found = []
    for recipe_file in sorted(results.rglob("recipe.yaml")):
        folder = recipe_file.parent
        if (folder / "certificate.json").exists():
            with unpacked(folder) as run:
                evidence = read_evidence(run)
            recipe = from_text(evidence.recipe)
            found.append(
                PublishedRun(
                    folder=folder.relative_to(results).as_posix(),
                    recipe=recipe,
                    evidence=evidence,
                    statistics=compute_statistics(evidence.rows, BUDGETS),
                    changed=_changed(recipe),
                )
            )
    return found


def runs_of(recipe: str, runs: list[PublishedRun]) -> list[PublishedRun]:
    """Return the full runs of a named recipe, by seed."""
    chosen = [run for run in runs if run.recipe.name == recipe and not run.remark]
    return sorted(chosen, key=lambda run: run.recipe.train.seed)


def _changed(recipe: Recipe) -> tuple[str, ...] | None:
    try:
        named = table_recipe(recipe.name)
    except BronetError:
        return None
    return tuple(key for key in differing_keys(recipe, named) if key not in FREE_KEYS)
