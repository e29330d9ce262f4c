"""Certify a trained run: its weights and a data set in, `certificate.csv` and `certificate.json` out.

One row per image; every table and curve is recomputed from these rows. The folder keeps what it had if anything fails.
"""

import hashlib
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from bronet.data import ImageSet, load_images
from bronet.errors import BronetError
from bronet.files import replace_text, require_writable, write_object
from bronet.graph.model import evaluating
from bronet.graph.network import ProvedNetwork, of_parts, prove
from bronet.layers import frozen
from bronet.models import CertifiableModel, Network
from bronet.radius import margin_radius
from bronet.recipe.schema import parse_budget
from bronet.records import rows_of, write_rows
from bronet.run.certificate import (
    Alignment,
    CertificateFile,
    LayerBound,
    Rounding,
    Row,
    SoundnessCost,
    file_hash,
    recorded,
    targeted_table,
)
from bronet.run.folder import RunFolder, open_run
from bronet.run.shares import ALONE, Parts, Share
from bronet.run.weights import load_model

Progress = Callable[[int, int], None]
"""Called with the number of images that are done, and of all."""
POWER_STEPS = 500
"""Of the naive estimates: as many as the published evaluation takes."""
ALIGNMENT_IMAGES, ALIGNMENT_DIGITS = 50, 6
"""As many images tell medians to a few percent, and cost little beside a certificate."""
_IMAGES_WITH_GRADIENTS = 10  # at once: all activations are kept


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
    progress: Progress = lambda _done, _all: None,
    share: Share = ALONE,
) -> CertifiedRun:
    """Prove the radius of every image of a split and write the rows into the run's folder.

    Radii are written with a margin that lets every other machine prove them again (`bronet.run.certificate.recorded`).
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
    network = prove(model, recipe.data.spec().shape)
    at_once = images_at_once(images.images.device, batch_size)
    files, recipe_hash, pixels_hash = run.certificate(split), file_hash(run.recipe_file), images_hash(images)
    about = [weights, recipe_hash, pixels_hash, at_once, targeted, images.images.device.type]
    parts, gap, found = Parts(files.rows, about, share), naive_gap_lipschitz(model, network), list[CertifiedImages]()

    def compute(first: int) -> CertifiedImages:
        index = torch.arange(first, min(first + at_once, len(images)), device=images.labels.device)
        proved = certify_images(model, network, images, index, gap)
        return proved if targeted else replace(proved, targeted=())

    with parts.collecting(), frozen(model):
        for new in parts.results(CertifiedImages, range(0, len(images), at_once), at_once, compute):
            found += new
            progress(sum(len(part.rows) for part in found), len(images))
        found.sort(key=lambda part: part.rows[0].index)
        rows = as_recorded(row for part in found for row in part.rows)
        if [row.index for row in rows] != list(range(len(images))) or any(bool(p.targeted) != targeted for p in found):
            raise BronetError(f"{parts.folder} must hold each of the {len(images)} images once; remove it")
        rounding = [amount for part in found for amount in part.rounding]
        seconds = time.perf_counter() - start
        if file_hash(run.weights) != weights:
            raise BronetError(f"{run.weights} must not change while it is certified, but it did; certify again")
        write_rows(Row, files.rows, rows)
        if targeted:
            radii = [[recorded(radius) for radius in of_image] for part in found for of_image in part.targeted]
            replace_text(files.targeted, targeted_table(rows, radii))
        else:
            files.targeted.unlink(missing_ok=True)  # one of an earlier certificate would contradict this one
        certificate = CertificateFile(
            data=recipe.data.name,
            split=split,
            images=len(images),
            classes=tuple(images.classes),
            pixels=math.prod(images.images.shape[1:]),
            eps=tuple(budgets),
            lipschitz=network.lipschitz,
            layers=layer_bounds(network, model),
            rounding=Rounding(worst=max(rounding), median=statistics.median(rounding)),
            soundness_cost=soundness_cost(rows),
            precision="float64",
            device=torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else "cpu",
            seconds=round(seconds, 3),
            command=command,
            weights_sha256=weights,
            recipe_sha256=recipe_hash,
            images_sha256=pixels_hash,
            rows_sha256=file_hash(files.rows),
            targeted_sha256=file_hash(files.targeted) if targeted else None,
            alignment=alignment(network, images),
        )
        write_object(files.facts, certificate.sealed())
    return CertifiedRun(rows, certificate)


@dataclass(frozen=True)
class CertifiedImages:
    """Rows, and beside each the amount that rounding took from a margin and the radius towards each class."""

    rows: tuple[Row, ...]
    rounding: tuple[float, ...]
    targeted: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if not len(self.rows) == len(self.rounding) > 0 or len(self.targeted) not in (0, len(self.rows)):
            raise BronetError(f"rows, rounding and targeted must be of the same images, got {len(self.rows)} rows")


def images_at_once(device: torch.device, wanted: int | None = None) -> int:
    """Return how many images to certify at once, as wanted or else: many keep a GPU and all threads of a CPU busy."""
    if wanted is None:
        return 144 if device.type == "cpu" else 250
    if wanted < 1:
        raise BronetError(f"batch_size must be at least 1, got {wanted}")
    return wanted


def certify_images(
    model: nn.Module, network: ProvedNetwork, images: ImageSet, index: Int[Tensor, " b"], gap: Float[Tensor, "k k"]
) -> CertifiedImages:
    """Return what is proved of some of the images, and beside it the radius of the literature for its `gap`."""
    pixels = images.pixels(index, dtype=torch.float64)
    return certify_pixels(model, network, pixels, images.labels[index], index=index, gap=gap, files=images.files)


def certify_pixels(
    model: nn.Module,
    network: ProvedNetwork,
    pixels: Float[Tensor, "b ..."],
    labels: Int[Tensor, " b"] | None,
    *,
    index: Int[Tensor, " b"],
    gap: Float[Tensor, "k k"],
    files: Sequence[str] = (),
) -> CertifiedImages:
    """Return what is proved of a batch, whose images have these labels (or none) and numbers; see `certify_images`."""
    proved = network.certify(pixels)
    labels = proved.prediction if labels is None else labels
    columns = {
        "index": index,
        "label": labels,
        "prediction": proved.prediction,
        "correct": labels == proved.prediction,
        "margin": proved.margin,
        "radius": proved.radius,
        "naive_radius": naive_radius(model, pixels, gap, at_once=network.images_at_once),
    }
    rows = (replace(row, file=files[row.index] if files else "") for row in rows_of(Row, columns))
    return CertifiedImages(tuple(rows), tuple(proved.rounding.tolist()), tuple(map(tuple, proved.targeted.tolist())))


def as_recorded(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return rows as they are written down."""
    return tuple(replace(row, radius=recorded(row.radius)) for row in rows)


def soundness_cost(rows: Sequence[Row]) -> SoundnessCost:
    """Return how much smaller the proved radius is than the naive one, over images with a naive radius.

    Negative where the proof gives more, which happens: the naive forward rounds in float32.
    """
    known = [row for row in rows if 0 < row.naive_radius < math.inf]
    lost = [row.naive_radius - row.radius for row in known]
    relative = [cost / row.naive_radius for cost, row in zip(lost, known, strict=True)]
    return SoundnessCost(
        median=statistics.median(lost) if known else None,
        worst=max(lost, default=None),
        relative_median=statistics.median(relative) if known else None,
        relative_worst=max(relative, default=None),
    )


def layer_bounds(network: ProvedNetwork, model: nn.Module) -> tuple[LayerBound, ...]:
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
def naive_gap_lipschitz(model: nn.Module, network: ProvedNetwork) -> Float[Tensor, "k k"]:
    """Return the literature's gap matrix, of estimates after 500 power-iteration steps; the model is left as it was.

    Not a proof: power iteration approaches a norm from below. A model without estimates has the proved gaps.
    """
    if not isinstance(model, CertifiableModel):
        return network.gap_lipschitz
    vectors = {name: buffer.clone() for name, buffer in model.named_buffers() if name.endswith("power_vector")}
    model.update_estimates(POWER_STEPS)
    gap = model.gap_lipschitz()
    for name, buffer in model.named_buffers():
        if name in vectors:
            buffer.copy_(vectors[name])
    return gap


@torch.no_grad()
def naive_radius(
    model: nn.Module, images: Float[Tensor, "b ..."], gap_lipschitz: Float[Tensor, "k k"], *, at_once: int | None = None
) -> Float[Tensor, " b"]:
    """Return the literature's radius of the float32 forward in evaluation mode, rounding ignored: not a proof.

    So many images are computed at once, by default all.
    """
    images, at_once = images.to(next(model.parameters()).dtype), at_once or len(images)
    with evaluating(model), frozen(model):
        if isinstance(model, Network):
            logits = torch.cat(of_parts(model, images, at_once))
        else:  # a forward that is not ours may keep something in its module, so that two threads would meet there
            logits = torch.cat([model(part) for part in images.split(at_once)])
    return margin_radius(logits, gap_lipschitz).radius


def alignment(network: ProvedNetwork, images: ImageSet) -> Alignment:
    """Return how much of its proved constants a network's margins use at the first images: a diagnosis, no proof.

    The margin that ends the radius has a gradient; its norm over the proved constant of that margin says which share of
    the constant is steep at the image. With 0.6 the true distance to the boundary of the linearised network is 1 / 0.6
    of the radius. A layer's share compares the gradient in front of it with its constant times the gradient behind it.
    Those of a chain multiply to the whole, up to the head's own, which is one where the head is linear.
    """
    index = torch.arange(min(len(images), ALIGNMENT_IMAGES), device=images.labels.device)
    parts = of_parts(partial(_shares, network), images.pixels(index, dtype=torch.float64), _IMAGES_WITH_GRADIENTS)
    whole, layers = (torch.cat(shares) for shares in zip(*parts, strict=True))
    medians = layers.median(dim=0).values.tolist()
    shares = tuple(None if math.isnan(share) else round(share, ALIGNMENT_DIGITS) for share in medians)
    return Alignment(images=len(index), median=round(float(whole.median()), ALIGNMENT_DIGITS), layers=shares)


@torch.enable_grad()
def _shares(network: ProvedNetwork, images: Tensor) -> tuple[Float[Tensor, " b"], Float[Tensor, "b layers"]]:
    """Return the share of every image, in all and of each layer; of a layer that has none NaN."""
    *values, logits = network.values(images.requires_grad_())
    t = logits.argmax(dim=1, keepdim=True)
    margins, gaps = logits.gather(1, t) - logits, network.gap_lipschitz[t[:, 0]]
    j = (margins / gaps).scatter(1, t, torch.inf).argmin(dim=1, keepdim=True)
    gradients = torch.autograd.grad(margins.gather(1, j).sum(), values)
    norms = [torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in gradients]
    uses = Counter(i for node in network.nodes for i in node.inputs)
    layers = [torch.full_like(norms[0], math.nan) for _ in network.layers]
    for value, node in enumerate(network.nodes[:-1], start=1):
        if len(node.inputs) == uses[node.inputs[0]] == 1:
            layers[value - 1] = (norms[node.inputs[0]] / (node.proved.lipschitz * norms[value])).nan_to_num(1.0)
    return (norms[0] / gaps.gather(1, j)[:, 0]).nan_to_num(0.0), torch.stack(layers, dim=1)
