"""Check a certificate: that no byte of what it speaks of has changed, and that its claims come out again.

Everything is recomputed from the weights and the images, in other batches than when it was made. A recorded radius is
confirmed if the recomputed one is no smaller: radii are written so far below their proof that other machines confirm
them. Of all other facts only the device, the time and the command line have to be believed, and which radii to report.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bronet.certificates.run import (
    Progress,
    alignment,
    certify_images,
    images_hash,
    layer_bounds,
    naive_gap_lipschitz,
    soundness_cost,
)
from bronet.data import load_images
from bronet.errors import BronetError
from bronet.graph.network import prove
from bronet.layers import frozen
from bronet.recipe.schema import parse_budget
from bronet.run.certificate import (
    Rounding,
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
RELATIVE, ABSOLUTE = 1e-9, 1e-12
"""Of margins, constants and budgets, from which no claim is computed: processors round differently."""
NAIVE = 1e-3
"""Of estimates in float32."""


@dataclass(frozen=True)
class Verification:
    """What was confirmed; `largest_difference` is how far below its proof a radius was recorded."""

    images: int
    largest_difference: float


def verify_run(
    certified: RunFolder | Path | str,
    *,
    network: Callable[[], nn.Module] | None = None,
    device: torch.device | str = "cpu",
    data_dir: Path | str | None = None,
    download: bool = False,
    progress: Progress = lambda _done, _all: None,
) -> Verification:
    """Confirm the certificate of a run folder (of its test images) or of a JSON file, or raise naming what differs.

    `network` makes the network of a run of the user's own code, as for `open_run`.
    """
    run, path = _certified(certified, network)
    certificate = read_certificate(path)
    files, data, split = run.certificate(certificate.split), run.recipe.data, certificate.split
    check_same("name of the certificate", files.facts.name, path.name)
    check_same(files.rows.name, file_hash(files.rows), certificate.rows_sha256)
    check_same(run.weights.name, file_hash(run.weights), certificate.weights_sha256)
    check_same(run.recipe_file.name, file_hash(run.recipe_file), certificate.recipe_sha256)
    targets = file_hash(files.targeted) if files.targeted.exists() else None
    check_same(files.targeted.name, targets, certificate.targeted_sha256)
    for eps in certificate.eps:
        parse_budget(eps, name="eps")
    images = load_images(
        data, split, limit=certificate.images, data_dir=data_dir, download=download, classes=run.classes()
    ).to(device)
    check_same(f"images of {data.name}", images_hash(images), certificate.images_sha256)
    told = (certificate.data, certificate.images, certificate.classes, certificate.pixels, certificate.precision)
    pixels = math.prod(images.images.shape[1:])
    check_same("data", (data.name, len(images), tuple(images.classes), pixels, "float64"), told)

    model = load_model(run, device=device)
    proof, rows = prove(model, data.spec().shape), read_certificate_rows(files.rows)
    gap = naive_gap_lipschitz(model, proof)
    if [row.index for row in rows] != list(range(len(images))):
        raise BronetError(f"{files.rows} must have one row for each of the {len(images)} images, in order")
    _confirm("lipschitz", proof.lipschitz, certificate.lipschitz)
    check_same("number of layers", len(proof.layers), len(certificate.layers))
    for bound, layer in zip(layer_bounds(proof, model), certificate.layers, strict=True):
        _confirm(layer.name, bound, layer)
    targeted = None if targets is None else read_targeted(files.targeted, len(rows))
    worst, rounding = 0.0, list[float]()
    with frozen(model):
        for index in torch.arange(len(images), device=images.labels.device).split(BATCH_SIZE):
            proved = certify_images(model, proof, images, index, gap)
            rounding += proved.rounding
            for row, radii in zip(proved.rows, proved.targeted, strict=True):
                claimed = rows[row.index]
                _confirm_row(claimed, row)
                worst = max(worst, 0.0 if claimed.radius == row.radius else row.radius - claimed.radius)
                if targeted is not None:
                    _confirm_targeted(targeted[row.index], Targeted(row.prediction, list(radii)), f"image {row.index}")
            progress(len(rounding), len(images))
    check_same("soundness_cost", soundness_cost(rows), certificate.soundness_cost)
    median = None if certificate.rounding.median is None else statistics.median(rounding)  # earlier ones have none
    _confirm("rounding", Rounding(worst=max(rounding), median=median), certificate.rounding)
    if certificate.alignment is not None:  # of gradients, where rounding decides which of two numbers is the larger
        _confirm("alignment", alignment(proof, images), certificate.alignment, relative=NAIVE, absolute=NAIVE)
    return Verification(len(images), worst)


def _confirm_row(row: Row, found: Row) -> None:
    """Raise unless the row says what was recomputed, and claims no more."""
    where = f"image {row.index}"
    check_same(f"file of {where}", found.file, row.file or found.file)  # earlier certificates name none
    check_same(f"label of {where}", found.label, row.label)
    check_same(f"prediction of {where}", found.prediction, row.prediction)
    _confirm(f"margin of {where}", found.margin, row.margin, absolute=ABSOLUTE)
    _confirm(f"naive_radius of {where}", found.naive_radius, row.naive_radius, relative=NAIVE, absolute=NAIVE)
    _at_most(f"radius of {where}", found.radius, row.radius)


def _confirm_targeted(recorded: Targeted, found: Targeted, where: str) -> None:
    check_same(f"prediction beside the targeted radii of {where}", found.prediction, recorded.prediction)
    check_same(f"number of classes of {where}", len(found.radii), len(recorded.radii))
    for j, (radius, claimed) in enumerate(zip(found.radii, recorded.radii, strict=True)):
        _at_most(f"radius of {where} towards class {j}", radius, claimed)


def _at_most(what: str, found: float, recorded: float) -> None:
    if not recorded <= found:
        check_same(what, found, recorded)


def _confirm(what: str, found: Any, recorded: Any, *, relative: float = RELATIVE, absolute: float = 0.0) -> None:
    """Raise unless two facts agree, numbers up to the rounding of another machine; NaN, of an overflow, is itself."""
    if is_dataclass(found):
        for key in (field.name for field in fields(found)):
            value, told = getattr(found, key), getattr(recorded, key)
            _confirm(f"{key} of {what}", value, told, relative=relative, absolute=absolute)
    elif isinstance(found, tuple):
        check_same(f"number of {what}", len(found), len(recorded))
        for value, told in zip(found, recorded, strict=True):
            _confirm(what, value, told, relative=relative, absolute=absolute)
    else:
        numbers = isinstance(found, int | float) and isinstance(recorded, float)
        same = numbers and math.isclose(found, recorded, rel_tol=relative, abs_tol=absolute)
        if not same and not (numbers and math.isnan(found) and math.isnan(recorded)):
            check_same(what, found, recorded)


def _certified(certified: RunFolder | Path | str, network: Callable[[], nn.Module] | None) -> tuple[RunFolder, Path]:
    """Return the run that a certificate is of, and the certificate's file; the test split's of a run folder."""
    if isinstance(certified, str | Path) and Path(certified).suffix == ".json":
        return open_run(Path(certified).parent, network=network), Path(certified)
    run = certified if isinstance(certified, RunFolder) else RunFolder(Path(certified), network)
    return run, run.certificate(run.certified_split()).facts
