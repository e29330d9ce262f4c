"""A residual network that `bronet.convert` made, beside a BRONet of about as many parameters, on held-out digits.

Both are trained by `bronet.train` from scratch with the recipe of the quick start, and nothing was tuned for either.
The images of which radii are proved are held out of the training split; the test split is left alone.
"""

import csv
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bronet
from bronet.data.image_set import ImageSet
from bronet.graph import CertifiableModel
from bronet.models.create import build_model
from bronet.recipe import named_recipe
from bronet.recipe.architecture import BRONetArchitecture
from bronet.training.run import split_images
from lab.tables.cells import aligned

HELD_OUT = 260
SHAPE, RADII = (1, 8, 8), (0.25, 0.5)


class Row(NamedTuple):
    """One network of one seed, and which shares of the held-out images are right, and proved at the radii."""

    network: str
    seed: int
    parameters: int
    epochs: int
    images: int
    clean: float
    quarter: float
    half: float
    median_radius: float


class Block(nn.Module):
    """The block of ResNet-18."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class ResNet(nn.Module):
    """A small residual network for images of 8 x 8 pixels, in ordinary torch."""

    def __init__(self, width: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.first, self.second = Block(width), Block(2 * width)
        self.down, self.last = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.Linear(2 * width * 16, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.down(self.first(self.stem(x))))
        return self.last(x.flatten(1))


def measure(*, seeds: Sequence[int] = (0, 1, 2), epochs: int = 20) -> list[Row]:
    """Train and certify both networks with every seed."""
    rows = []
    for seed in seeds:
        for name in ("converted ResNet", "BRONet"):
            torch.manual_seed(seed)
            model = bronet.convert(ResNet(), SHAPE, seed=seed) if name != "BRONet" else _bronet(seed)
            rows.append(_trained(name, model, seed, epochs))
    return rows


def _bronet(seed: int) -> CertifiableModel:
    recipe = named_recipe("digits/quickstart")
    assert isinstance(recipe.model, BRONetArchitecture)
    architecture = replace(recipe.model, width=32, dense_width=48)  # about as many parameters as the other has
    return build_model(architecture, recipe.data.spec(), seed=seed)


def _trained(name: str, model: CertifiableModel, seed: int, epochs: int) -> Row:
    settings = [f"train.epochs={epochs}", f"train.seed={seed}", "loss.emma_eps=1/4", f"data.held_out={HELD_OUT}"]
    with tempfile.TemporaryDirectory() as folder:
        run = bronet.train(model, "digits", folder=Path(folder) / "run", settings=settings, progress=False)
        _, held_out = split_images(run.recipe.data)
    assert isinstance(held_out, ImageSet)
    labels = held_out.labels
    proved = bronet.prove(model.eval()).certify(held_out.pixels(torch.arange(len(labels))))
    correct = proved.prediction == labels
    quarter, half = (float((correct & (proved.radius > eps)).double().mean()) for eps in RADII)
    count = sum(parameter.numel() for parameter in model.parameters())
    clean, median = float(correct.double().mean()), float(proved.radius.median())
    return Row(name, seed, count, epochs, len(labels), clean, quarter, half, median)


def table(rows: Sequence[Row]) -> str:
    """Return the means over the seeds as a table for people, with the spread of each."""
    cells = [["network", "parameters", "clean", "ε = 1/4", "ε = 1/2", "median radius", "seeds"]]
    for name in dict.fromkeys(row.network for row in rows):
        own = [row for row in rows if row.network == name]
        shares = [_mean([getattr(row, field) * 100 for row in own]) for field in ("clean", "quarter", "half")]
        median = sum(row.median_radius for row in own) / len(own)
        seeds = ", ".join(str(row.seed) for row in own)
        cells.append([name, f"{own[0].parameters:,}", *shares, f"{median:.3f}", seeds])
    return aligned(cells)


def read_rows(path: Path) -> list[Row]:
    """Return the rows that `python -m lab analyze converted` has written."""
    with path.open(encoding="utf-8", newline="") as file:
        _, *lines = csv.reader(file)
    kinds = Row.__annotations__.values()
    return [Row._make(kind(value) for kind, value in zip(kinds, line, strict=True)) for line in lines]


def _mean(values: Sequence[float]) -> str:
    spread = max(values) - min(values)
    return f"{sum(values) / len(values):.1f} % ± {spread / 2:.1f}"
