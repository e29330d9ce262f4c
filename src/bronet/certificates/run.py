"""Certify a trained run: its weights and a data set in, `certificate.csv` and `certificate.json` out.

One row per image; every table and curve is recomputed from these rows. The folder keeps what it had if anything fails.
"""

import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from bronet.certificates.naive import naive_gap_lipschitz, naive_radius
from bronet.certificates.network import ProvedNetwork, images_at_once, prove
from bronet.certificates.targeted import targeted_table
from bronet.data import ImageSet, load_images
from bronet.errors import BronetError
from bronet.files import Json, replace_text, require_writable
from bronet.layers import frozen
from bronet.models import CertifiableModel
from bronet.recipe.schema import Recipe, parse_budget
from bronet.run.certificate import file_hash, images_hash, sealed
from bronet.run.folder import RunFolder, open_run
from bronet.run.rows import Row, write_rows
from bronet.run.weights import trained_model

Progress = Callable[[int], None]


class CertificateFiles(NamedTuple):
    """The files of one split's certificate: the test split's have the plain names."""

    rows: Path
    facts: Path
    targeted: Path

    @classmethod
    def of(cls, folder: Path, split: str) -> "CertificateFiles":
        """Return the files of a split in a run folder; nothing is touched."""
        suffix = "" if split == "test" else f"-{split}"
        names = (f"certificate{suffix}.csv", f"certificate{suffix}.json", f"targeted{suffix}.csv")
        return cls(*(folder / name for name in names))


@dataclass(frozen=True)
class CertifiedRun:
    """What certifying a run gave: the rows and the facts beside them."""

    rows: list[Row]
    facts: Json


def load_model(run: RunFolder, recipe: Recipe, *, device: torch.device | str = "cpu") -> CertifiableModel:
    """Return the trained network of a run, in evaluation mode."""
    return trained_model(run.weights, recipe, device=device)


def certify_run(
    run_dir: Path | str,
    *,
    images: ImageSet | None = None,
    eps: tuple[str, ...] = (),
    split: str = "test",
    limit: int | None = None,
    targeted: bool = False,
    device: torch.device | str = "cpu",
    data_dir: Path | str | None = None,
    batch_size: int | None = None,
    command: str = "",
    progress: Progress | None = None,
) -> CertifiedRun:
    """Prove the radius of every image of a split and write the rows into the run's folder.

    `images` are those of the split, if they are loaded already. `eps` are the budgets a report shows (default: the
    recipe's); `limit` certifies only the first images, and the facts say so; `targeted` also writes how far each image
    is from each class. `batch_size` images are computed at once, by default as many as suit the device. `progress` is
    called with the number of images done after every batch.
    """
    run = open_run(Path(run_dir))
    recipe = run.recipe()
    budgets = eps or recipe.certify.eps
    for budget in budgets:
        parse_budget(budget)
    require_writable(run.path)  # rather now than when all is proved
    if images is None:
        images = load_images(recipe.data, split, data_dir=data_dir, limit=limit, classes=run.classes())
    images = images.to(device)
    weights = file_hash(run.weights)
    model = load_model(run, recipe, device=device)
    start = time.perf_counter()
    network = prove(model)
    at_once = images_at_once(images.images.device, batch_size)
    result = certify_images(model, network, images, batch_size=at_once, progress=progress)
    seconds = time.perf_counter() - start
    if file_hash(run.weights) != weights:
        raise BronetError(f"{run.weights} must not change while it is certified, but it did; certify again")
    facts = {
        "data": recipe.data.name,
        "split": split,
        "images": len(images),
        "classes": list(images.classes),
        "pixels": math.prod(images.images.shape[1:]),
        "eps": list(budgets),
        **describe(network, dict(model.chain())),
        "rounding": {"worst": max(result.rounding), "median": statistics.median(result.rounding)},
        "soundness_cost": soundness_cost(result.rows),
        "precision": "float64",
        "device": torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else "cpu",
        "seconds": round(seconds, 3),
        "command": command,
        "weights_sha256": weights,
        "recipe_sha256": file_hash(run.recipe_file),
        "images_sha256": images_hash(images),
    }
    return _write(CertificateFiles.of(run.path, split), result, facts, targeted=targeted)


def _write(files: CertificateFiles, result: "CertifiedImages", facts: Json, *, targeted: bool) -> "CertifiedRun":
    """Write rows and facts; the hashes in the facts are those of the files written before them."""
    write_rows(files.rows, result.rows)
    facts["rows_sha256"] = file_hash(files.rows)
    if targeted:
        replace_text(files.targeted, targeted_table(result.rows, result.targeted))
        facts["targeted_sha256"] = file_hash(files.targeted)
    else:
        files.targeted.unlink(missing_ok=True)  # one of an earlier certificate would contradict this one
    facts = sealed(facts)
    replace_text(files.facts, json.dumps(facts, indent=2) + "\n")
    return CertifiedRun(result.rows, facts)


@dataclass(frozen=True)
class CertifiedImages:
    """Rows, and beside each the amount that rounding took from a margin and the radius towards each class."""

    rows: list[Row]
    rounding: list[float]
    targeted: list[list[float]]


def certify_images(
    model: CertifiableModel,
    network: ProvedNetwork,
    images: ImageSet,
    *,
    batch_size: int,
    progress: Progress | None = None,
) -> CertifiedImages:
    """Return what is proved of every image, and the radius of the literature beside it."""
    gap = naive_gap_lipschitz(model)
    result = CertifiedImages([], [], [])
    with frozen(model):
        for index in torch.arange(len(images), device=images.labels.device).split(batch_size):
            pixels = images.pixels(index, dtype=torch.float64)
            proved = network.certify(pixels)
            naive = naive_radius(model, pixels, gap)
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
                result.rows.append(row)
            result.rounding.extend(proved.rounding.tolist())
            result.targeted.extend(proved.targeted.tolist())
            if progress is not None:
                progress(len(result.rows))
    return result


def soundness_cost(rows: Sequence[Row]) -> Json:
    """Return how much smaller the proved radius is than the naive one, over images with a naive radius.

    Negative where the proof gives more, which happens: the naive forward rounds in float32.
    """
    pairs = [(row.naive_radius - row.radius, row.naive_radius) for row in rows if 0 < row.naive_radius < math.inf]
    if not pairs:
        return {"median": None, "worst": None, "relative_median": None, "relative_worst": None}
    lost, relative = [cost for cost, _ in pairs], [cost / naive for cost, naive in pairs]
    return {
        "median": statistics.median(lost),
        "worst": max(lost),
        "relative_median": statistics.median(relative),
        "relative_worst": max(relative),
    }


def describe(network: ProvedNetwork, layers: dict[str, object]) -> Json:
    """Return the proved bound of every layer, and their product."""
    table = [
        {
            "name": name,
            "kind": type(layers[name]).__name__,
            "lipschitz": proved.lipschitz,
            "rounding_gain": proved.gain,
            **({"remark": proved.remark} if proved.remark else {}),
        }
        for name, proved in network.layers
    ]
    return {"lipschitz": network.lipschitz, "layers": table}
