"""Certify a trained run: its weights and a data set in, `certificate.csv` and `certificate.json` out.

One row per image; every table and curve is recomputed from these rows. The folder keeps what it had if anything fails.
"""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from bronet.certify.naive import naive_gap_lipschitz, naive_radius
from bronet.certify.network import ProvedNetwork, prove
from bronet.certify.rows import Row, write_atomically, write_rows
from bronet.data import ImageSet, load_images
from bronet.layers import frozen
from bronet.models import CertifiableModel, build_model
from bronet.recipe.schema import Recipe, parse_budget
from bronet.train.run_folder import RunFolder, open_run
from bronet.train.weights import load_weights

Progress = Callable[[int], None]


@dataclass(frozen=True)
class CertifiedRun:
    """What certifying a run gave: the rows and the facts beside them."""

    rows: list[Row]
    facts: dict[str, object]


def load_model(run: RunFolder, recipe: Recipe, *, device: torch.device | str = "cpu") -> CertifiableModel:
    """Return the trained network of a run, in evaluation mode."""
    model = build_model(recipe.model, recipe.data.spec(), device=device)
    load_weights(run.weights, model)
    return model.eval()


def certify_run(
    run_dir: Path | str,
    *,
    eps: tuple[str, ...] = (),
    split: str = "test",
    limit: int | None = None,
    device: torch.device | str = "cpu",
    data_dir: Path | str | None = None,
    batch_size: int = 250,
    command: str = "",
    progress: Progress | None = None,
) -> CertifiedRun:
    """Prove the radius of every image of a split and write the rows into the run's folder.

    `eps` are the budgets a report shows (default: the recipe's); `limit` certifies only the first images, and the
    facts say so. `progress` is called with the number of images done after every batch.
    """
    run = open_run(Path(run_dir))
    recipe = run.recipe()
    budgets = eps or recipe.certify.eps
    for budget in budgets:
        parse_budget(budget)
    images = load_images(recipe.data, split, data_dir=data_dir, limit=limit).to(device)
    model = load_model(run, recipe, device=device)
    start = time.perf_counter()
    network = prove(model)
    rows, rounding = certify_images(model, network, images, batch_size=batch_size, progress=progress)
    seconds = time.perf_counter() - start
    facts = {
        "data": recipe.data.name,
        "split": split,
        "images": len(images),
        "eps": list(budgets),
        **describe(network, dict(model.chain())),
        "rounding": {"worst": rounding},
        "precision": "float64",
        "seconds": round(seconds, 3),
        "command": command,
        "weights_sha256": hashlib.sha256(run.weights.read_bytes()).hexdigest(),
    }
    write_rows(run.path / "certificate.csv", rows)
    write_atomically(run.path / "certificate.json", (json.dumps(facts, indent=2) + "\n").encode())
    return CertifiedRun(rows, facts)


def certify_images(
    model: CertifiableModel,
    network: ProvedNetwork,
    images: ImageSet,
    *,
    batch_size: int,
    progress: Progress | None = None,
) -> tuple[list[Row], float]:
    """Return one row per image, and the largest amount that rounding took from a margin."""
    gap = naive_gap_lipschitz(model)
    rows: list[Row] = []
    rounding = 0.0
    with frozen(model):
        for index in torch.arange(len(images), device=images.labels.device).split(batch_size):
            pixels = images.pixels(index, dtype=torch.float64)
            proved = network.certify(pixels)
            naive = naive_radius(model, pixels, gap)
            rounding = max(rounding, float(proved.rounding.max()))
            columns = (index, images.labels[index], proved.prediction, proved.margin, proved.radius, naive)
            for i, label, prediction, margin, radius, estimate in zip(*(c.tolist() for c in columns), strict=True):
                row = Row(
                    index=i,
                    label=label,
                    prediction=prediction,
                    correct=label == prediction,
                    margin=margin,
                    radius=radius,
                    naive_radius=estimate,
                )
                rows.append(row)
            if progress is not None:
                progress(len(rows))
    return rows, rounding


def describe(network: ProvedNetwork, layers: dict[str, object]) -> dict[str, object]:
    """Return the proved bound of every layer, and their product."""
    table = [
        {
            "name": name,
            "kind": type(layers[name]).__name__,
            "lipschitz": proved.lipschitz,
            "rounding_gain": proved.gain,
        }
        for name, proved in network.layers
    ]
    return {"lipschitz": network.lipschitz, "layers": table}
