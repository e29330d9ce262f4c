"""Check a certificate: that no byte of what it speaks of has changed, and that its claims come out again.

Everything is recomputed from the weights and the images, in other batches than when it was made. A recorded radius is
confirmed if the recomputed one is no smaller, up to the rounding of another machine.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from bronet.certificates.run import Progress, images_hash
from bronet.data import load_images
from bronet.errors import BronetError
from bronet.graph.network import prove
from bronet.run.certificate import (
    Row,
    Targeted,
    check_same,
    file_hash,
    read_certificate,
    read_certificate_rows,
    read_targeted,
)
from bronet.run.folder import RunFolder, open_run
from bronet.run.weights import load_model

BATCH_SIZE = 97
"""Other than the default of `certify_run`, so that sums are taken in another order."""
RELATIVE = 1e-9
ABSOLUTE = 1e-12
"""Other processors round the same program differently, by far less than this."""


@dataclass(frozen=True)
class Verification:
    """What was confirmed."""

    images: int
    lipschitz: float
    largest_difference: float


def verify_run(
    certified: RunFolder | Path | str,
    *,
    device: torch.device | str = "cpu",
    data_dir: Path | str | None = None,
    download: bool = False,
    progress: Progress | None = None,
) -> Verification:
    """Confirm the certificate of a run folder (of its test images) or of a JSON file, or raise naming what differs."""
    run, path = _certified(certified)
    certificate = read_certificate(path)
    files = run.certificate(certificate.split)
    check_same("name of the certificate", files.facts.name, path.name)
    check_same(files.rows.name, file_hash(files.rows), certificate.rows_sha256)
    check_same(run.weights.name, file_hash(run.weights), certificate.weights_sha256)
    check_same(run.recipe_file.name, file_hash(run.recipe_file), certificate.recipe_sha256)
    if certificate.targeted_sha256 is not None:
        check_same(files.targeted.name, file_hash(files.targeted), certificate.targeted_sha256)
    data, split, limit = run.recipe.data, certificate.split, certificate.images
    images = load_images(data, split, limit=limit, data_dir=data_dir, download=download, classes=run.classes()).to(
        device
    )
    check_same(f"images of {data.name}", images_hash(images), certificate.images_sha256)

    network = prove(load_model(run, device=device))
    rows = read_certificate_rows(files.rows)
    if [row.index for row in rows] != list(range(len(images))):
        raise BronetError(f"{files.rows} must have one row for each of the {len(images)} images, in order")
    _at_least("lipschitz", network.lipschitz, certificate.lipschitz)
    names = [layer.name for layer in certificate.layers]
    check_same("names of the layers", [name for name, _ in network.layers], names)
    for (name, found), layer in zip(network.layers, certificate.layers, strict=True):
        _at_least(f"lipschitz of {name}", found.lipschitz, layer.lipschitz)
    targeted = None if certificate.targeted_sha256 is None else read_targeted(files.targeted, len(rows))
    worst = 0.0
    for index in torch.arange(len(images), device=images.labels.device).split(BATCH_SIZE):
        proved = network.certify(images.pixels(index, dtype=torch.float64))
        columns = (index, images.labels[index], proved.prediction, proved.margin, proved.radius, proved.targeted)
        for number, *values, radii in zip(*(column.tolist() for column in columns), strict=True):
            worst = max(worst, _confirm(rows[number], *values))
            if targeted is not None:
                _confirm_targeted(targeted[number], Targeted(rows[number].prediction, radii), f"image {number}")
        if progress is not None:
            progress(int(index[-1]) + 1, len(images))
    return Verification(len(images), network.lipschitz, worst)


def _confirm(row: Row, label: int, prediction: int, margin: float, radius: float) -> float:
    """Raise unless the row says what was recomputed; return how far its radius is off."""
    where = f"image {row.index}"
    check_same(f"label of {where}", label, row.label)
    check_same(f"prediction of {where}", prediction, row.prediction)
    both_nan = math.isnan(margin) and math.isnan(row.margin)  # of logits that overflow
    if not (abs(margin - row.margin) <= RELATIVE * abs(margin) + ABSOLUTE or margin == row.margin or both_nan):
        check_same(f"margin of {where}", margin, row.margin)
    _at_most(f"radius of {where}", radius, row.radius)
    return abs(radius - row.radius)


def _confirm_targeted(recorded: Targeted, found: Targeted, where: str) -> None:
    check_same(f"prediction beside the targeted radii of {where}", found.prediction, recorded.prediction)
    check_same(f"number of classes of {where}", len(found.radii), len(recorded.radii))
    for j, (radius, claimed) in enumerate(zip(found.radii, recorded.radii, strict=True)):
        _at_most(f"radius of {where} towards class {j}", radius, claimed)


def _at_most(what: str, found: float, recorded: float) -> None:
    """Raise if more is recorded than was found, up to the rounding of another machine."""
    if not recorded <= found * (1 + RELATIVE) + ABSOLUTE:
        check_same(what, found, recorded)


def _at_least(what: str, found: float, recorded: float) -> None:
    """Raise if less is recorded than was found, up to the rounding of another machine."""
    if not found <= recorded * (1 + RELATIVE) + ABSOLUTE:
        check_same(what, found, recorded)


def _certified(certified: RunFolder | Path | str) -> tuple[RunFolder, Path]:
    """Return the run that a certificate is of, and the certificate's file; the test split's of a run folder."""
    if isinstance(certified, str | Path) and Path(certified).suffix == ".json":
        return open_run(Path(certified).parent), Path(certified)
    run = certified if isinstance(certified, RunFolder) else RunFolder(Path(certified))
    return run, run.certificate(run.certified_split()).facts
