"""Everybody's networks in one table per data set: what the paper prints, what came later, and what we ran.

Rows of others are quoted. Ours are computed from the committed rows, and link to them and to their recipes.
"""

import csv
from collections.abc import Sequence
from importlib import resources

from bronet.models import build_model
from bronet.wording import ABSENT, duration_text
from lab.tables.cells import aligned
from lab.tables.published import PublishedRun, paper_rows

FILE = "peers.csv"
TABLES = (1, 2, 9, 13)
"""Of the paper: networks on CIFAR and ImageNet, with generated images, on Tiny-ImageNet, and LipConvNet."""
NAMES = {"LA": "LipConvNet-10-32 (+LA)", "CE": "LipConvNet-10-32"}
"""Of the rows of Table 13, which names the loss only."""
HEADER = ("method", "clean", "36/255", "72/255", "108/255", "sound", "parameters", "extra data", "training", "source")
PUBLISHED_STEPS = {"BRONet-M": 0.190, "BRONet-L": 0.309}
"""Seconds of a training step of the published code on one H200 (docs/speed.md)."""
STEPS_ON_CIFAR = 800 * 196
"""Epochs of the paper, each of 196 batches."""


def leaderboard(data: str, runs: Sequence[PublishedRun]) -> str:
    """Return all networks on a data set, those with the highest certified accuracy at 36/255 first."""
    lines = [*_from_paper(data), *_later(data), *_ours(data, runs)]
    return aligned([HEADER, *sorted(lines, key=lambda line: -float(line[2]))])


def _from_paper(data: str) -> list[list[str]]:
    lines = []
    for table in TABLES:
        for row in paper_rows(table):
            name, _, extra = row.group.partition("+")
            if name != data:
                continue
            method = NAMES.get(row.row, row.row)
            step = PUBLISHED_STEPS.get(method.partition(" ")[0]) if data.startswith("cifar") and not extra else None
            cost = f"{step * STEPS_ON_CIFAR / 3600:.0f} h, 1 H200" if step else ABSENT
            accuracies = [ABSENT if value is None else f"{value:.1f}" for value in (row.clean, *row.certified)]
            images = f"{extra.upper()} images" if extra else "no"
            source = f"the paper, Table {table}"
            lines.append([method, *accuracies, "not claimed", row.parameters or ABSENT, images, cost, source])
    return lines


def _later(data: str) -> list[list[str]]:
    text = resources.files("lab.tables").joinpath(FILE).read_text(encoding="utf-8")
    keys = ("clean", "certified_36", "certified_72", "certified_108")
    return [
        [
            row["method"],
            *(row[key] or ABSENT for key in keys),
            "not claimed",
            row["parameters"] or ABSENT,
            row["extra"] or "no",
            ABSENT,
            row["source"],
        ]
        for row in csv.DictReader(text.splitlines())
        if row["data"] == data
    ]


def _ours(data: str, runs: Sequence[PublishedRun]) -> list[list[str]]:
    lines = []
    for run in runs:
        recipe = run.recipe
        if recipe.data.name != data or not run.whole:
            continue
        model = build_model(recipe.model, recipe.data.spec(), device="meta")
        millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
        seconds = run.evidence.training_seconds
        cost = f"{duration_text(seconds)}, 1 {str(run.evidence.record['device']).removeprefix('NVIDIA ')}"
        changed = ", changed" if run.changed else ""
        name = f"**{recipe.name.partition('/')[2]}**, seed {recipe.train.seed}{changed}"
        folder = f"../lab/results/{run.folder}"
        lines.append(
            [
                name,
                *(f"{share:.1f}" for share in run.statistics.percents),
                "yes",
                f"{millions:.0f}M",
                "EDM images" if recipe.data.synthetic else "no",
                cost if seconds else ABSENT,
                f"ours: [recipe]({folder}/recipe.yaml), [rows]({folder}/rows.npz.xz)",
            ]
        )
    return lines
