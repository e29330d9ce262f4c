"""Certify a trained run: its weights and a data set in, `certificate.csv` and `certificate.json` out.

One row per image; every table and curve is recomputed from these rows. The folder keeps what it had if anything fails.
"""

import hashlib
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from bronet.certificates.images import images_at_once
from bronet.data import ImageSet, load_images
from bronet.errors import BronetError
from bronet.files import replace_text, require_writable
from bronet.graph.network import ProvedNetwork, prove
from bronet.layers import frozen
from bronet.models import CertifiableModel
from bronet.radius import margin_radius
from bronet.recipe.schema import parse_budget
from bronet.run.certificate import (
    CertificateFile,
    LayerBound,
    Rounding,
    Row,
    SoundnessCost,
    file_hash,
    targeted_table,
    write_certificate_rows,
)
from bronet.run.folder import CertificateFiles, RunFolder, open_run
from bronet.run.shares import ALONE, POLL_SECONDS, Parts, Share, ShareDone
from bronet.run.weights import load_model

Progress = Callable[[int, int], None]
"""Called with the number of images that are done, and of all."""
POWER_STEPS = 500
"""Of the naive estimates: as many as the published evaluation takes."""


@dataclass(frozen=True)
class CertifiedRun:
    """What certifying a run gave: the rows and the certificate beside them."""

    rows: tuple[Row, ...]
    certificate: CertificateFile


def certify_run(
    run: RunFolder | Path | str,
    *,
    eps: tuple[str, ...] = (),
    split: str = "test",
    limit: int | None = None,
    targeted: bool = False,
    device: torch.device | str = "cpu",
    data_dir: Path | str | None = None,
    download: bool = False,
    batch_size: int | None = None,
    command: str = "",
    progress: Progress | None = None,
    share: Share = ALONE,
) -> CertifiedRun:
    """Prove the radius of every image of a split and write the rows into the run's folder.

    `eps` are the budgets a report shows (default: the recipe's); `limit` certifies only the first images, and the
    certificate says so; `targeted` also writes how far each image is from each class. With `download`, archives that
    are missing are fetched. `batch_size` images are computed at once, by default as many as suit the device. `progress`
    is called after every batch.

    Batches are dealt out over the processes of which `share` is one: each calls this, the first returns what all have
    proved, and the others raise `ShareDone`. A certifying that was stopped goes on from the batches that are there.
    """
    run = open_run(run)
    recipe = run.recipe
    budgets = eps or recipe.certify.eps
    for budget in budgets:
        parse_budget(budget)
    require_writable(run.path)  # rather now than when all is proved
    images = load_images(
        recipe.data, split, data_dir=data_dir, download=download, limit=limit, classes=run.classes()
    ).to(device)
    weights = file_hash(run.weights)
    model = load_model(run, device=device)
    start = time.perf_counter()
    network = prove(model)
    at_once = images_at_once(images.images.device, batch_size)
    files, recipe_hash, pixels_hash = run.certificate(split), file_hash(run.recipe_file), images_hash(images)
    parts = Parts(files.rows, [weights, recipe_hash, pixels_hash, at_once, targeted, images.images.device.type], share)
    with parts.collecting():
        result = _dealt_out(model, network, images, parts=parts, at_once=at_once, targeted=targeted, progress=progress)
        seconds = time.perf_counter() - start
        if file_hash(run.weights) != weights:
            raise BronetError(f"{run.weights} must not change while it is certified, but it did; certify again")
        certificate = CertificateFile(
            data=recipe.data.name,
            split=split,
            images=len(images),
            classes=tuple(images.classes),
            pixels=math.prod(images.images.shape[1:]),
            eps=tuple(budgets),
            lipschitz=network.lipschitz,
            layers=layer_bounds(network, model),
            rounding=Rounding(worst=max(result.rounding), median=statistics.median(result.rounding)),
            soundness_cost=soundness_cost(result.rows),
            precision="float64",
            device=torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else "cpu",
            seconds=round(seconds, 3),
            command=command,
            weights_sha256=weights,
            recipe_sha256=recipe_hash,
            images_sha256=pixels_hash,
            rows_sha256="",
        )
        return _write(files, result, certificate, targeted=targeted)


def _write(
    files: CertificateFiles, result: "CertifiedImages", certificate: CertificateFile, *, targeted: bool
) -> CertifiedRun:
    """Write rows and certificate; the hashes in the certificate are those of the files written before it."""
    write_certificate_rows(files.rows, result.rows)
    if targeted:
        replace_text(files.targeted, targeted_table(result.rows, result.targeted))
    else:
        files.targeted.unlink(missing_ok=True)  # one of an earlier certificate would contradict this one
    certificate = replace(
        certificate,
        rows_sha256=file_hash(files.rows),
        targeted_sha256=file_hash(files.targeted) if targeted else None,
    )
    replace_text(files.facts, json.dumps(certificate.sealed(), indent=2) + "\n")
    return CertifiedRun(result.rows, certificate)


@dataclass(frozen=True)
class CertifiedImages:
    """Rows, and beside each the amount that rounding took from a margin and the radius towards each class."""

    rows: tuple[Row, ...]
    rounding: tuple[float, ...]
    targeted: tuple[tuple[float, ...], ...]


def _dealt_out(
    model: CertifiableModel,
    network: ProvedNetwork,
    images: ImageSet,
    *,
    parts: Parts,
    at_once: int,
    targeted: bool,
    progress: Progress | None,
) -> CertifiedImages:
    """Certify this process's batches and return those of all; raise `ShareDone` in every process but the first."""
    firsts = range(0, len(images), at_once)
    mine = [first for first in firsts if parts.wants(first, at_once)]
    for first, proved in zip(mine, certify_images(model, network, images, mine, at_once=at_once), strict=True):
        parts.put(first, proved if targeted else replace(proved, targeted=()))
        _show(parts, firsts, at_once, len(images), progress if parts.share.is_main else None)
    if not parts.share.is_main:
        raise ShareDone
    while not set(firsts) <= parts.there():
        _show(parts, firsts, at_once, len(images), progress)
        time.sleep(POLL_SECONDS)
    _show(parts, firsts, at_once, len(images), progress if parts.share.world > 1 else None)
    whole = [parts.take(CertifiedImages, first) for first in firsts]
    return CertifiedImages(
        tuple(row for part in whole for row in part.rows),
        tuple(amount for part in whole for amount in part.rounding),
        tuple(radii for part in whole for radii in part.targeted),
    )


def _show(parts: Parts, firsts: range, at_once: int, images: int, progress: Progress | None) -> None:
    """Tell how many images all processes have certified."""
    if progress is not None:
        progress(sum(min(at_once, images - first) for first in parts.there() & set(firsts)), images)


def certify_images(
    model: CertifiableModel, network: ProvedNetwork, images: ImageSet, firsts: Iterable[int], *, at_once: int
) -> Iterator[CertifiedImages]:
    """Yield what is proved of each batch of images, and the radius of the literature beside it."""
    gap = naive_gap_lipschitz(model)
    with frozen(model):
        for first in firsts:
            index = torch.arange(first, min(first + at_once, len(images)), device=images.labels.device)
            pixels = images.pixels(index, dtype=torch.float64)
            proved = network.certify(pixels)
            naive = naive_radius(model, pixels, gap)
            columns = (index, images.labels[index], proved.prediction, proved.margin, proved.radius, naive)
            rows = [
                Row(
                    index=i,
                    label=label,
                    prediction=prediction,
                    correct=label == prediction,
                    margin=margin,
                    radius=radius,
                    naive_radius=estimate,
                )
                for i, label, prediction, margin, radius, estimate in zip(*(c.tolist() for c in columns), strict=True)
            ]
            targeted = tuple(tuple(radii) for radii in proved.targeted.tolist())
            yield CertifiedImages(tuple(rows), tuple(proved.rounding.tolist()), targeted)


def soundness_cost(rows: Sequence[Row]) -> SoundnessCost:
    """Return how much smaller the proved radius is than the naive one, over images with a naive radius.

    Negative where the proof gives more, which happens: the naive forward rounds in float32.
    """
    pairs = [(row.naive_radius - row.radius, row.naive_radius) for row in rows if 0 < row.naive_radius < math.inf]
    if not pairs:
        return SoundnessCost(median=None, worst=None, relative_median=None, relative_worst=None)
    lost, relative = [cost for cost, _ in pairs], [cost / naive for cost, naive in pairs]
    return SoundnessCost(
        median=statistics.median(lost),
        worst=max(lost),
        relative_median=statistics.median(relative),
        relative_worst=max(relative),
    )


def layer_bounds(network: ProvedNetwork, model: CertifiableModel) -> tuple[LayerBound, ...]:
    """Return the proved bound of every layer."""
    layers = dict(model.named_modules())
    return tuple(
        LayerBound(
            name=name,
            kind=type(layers[name]).__name__ if name in layers else "function",
            lipschitz=proved.lipschitz,
            rounding_gain=proved.gain,
            remark=proved.remark,
        )
        for name, proved in network.layers
    )


def images_hash(images: ImageSet) -> str:
    """Return the hash of pixels, labels and scale, on whatever device they are."""
    digest = hashlib.sha256(f"{tuple(images.images.shape)} {images.scale}".encode())
    for tensor in (images.images, images.labels.to(torch.int64)):
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


@torch.no_grad()
def naive_gap_lipschitz(model: CertifiableModel) -> Float[Tensor, "k k"]:
    """Return the literature's gap matrix, of estimates after 500 power-iteration steps; the model is left as it was.

    Not a proof: power iteration approaches a norm from below.
    """
    vectors = {name: buffer.clone() for name, buffer in model.named_buffers() if name.endswith("power_vector")}
    model.update_estimates(POWER_STEPS)
    gap = model.gap_lipschitz()
    for name, buffer in model.named_buffers():
        if name in vectors:
            buffer.copy_(vectors[name])
    return gap


@torch.no_grad()
def naive_radius(
    model: CertifiableModel, images: Float[Tensor, "b c h w"], gap_lipschitz: Float[Tensor, "k k"]
) -> Float[Tensor, " b"]:
    """Return the literature's radius of the float32 forward in evaluation mode, rounding ignored: not a proof."""
    was_training = model.training
    model.eval()
    with frozen(model):
        logits = model(images.to(next(model.parameters()).dtype))
    model.train(was_training)
    return margin_radius(logits, gap_lipschitz).radius
