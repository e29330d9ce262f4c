"""What the page is told, as JSON: the runs, one network, what is proved of an image, what an attack found.

Every radius is the float64 certificate's, written down as there (`recorded`). Numbers that are infinite are null: no
point at all changes the class.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from bronet.attack.judge import Logits, attack_image
from bronet.certificates.run import Progress
from bronet.errors import BronetError
from bronet.files import Json
from bronet.layers import frozen
from bronet.records import as_plain
from bronet.report.figures import Curve, certified_curve, step_curve
from bronet.report.gallery import WHITE
from bronet.report.table import finite_or_none
from bronet.run.certificate import recorded
from bronet.web.picture import noise_picture, picture, read_upload, sheet
from bronet.web.served import Card, Comparison, Served
from bronet.wording import bound_text

OneImage = Float[Tensor, "1 c h w"]
STEPS = 40
"""Steps of one restart of the attack."""
MAX_RESTARTS = 5
CURVE_DIGITS = 6


def card_answer(card: Card) -> Json:
    """Return name, data set and curve of a run: corners of a step function, as (radius, accuracy)."""
    certified, published, folder = card.evidence, card.published, card.folder
    images, remark, curve = "", card.remark, list[list[float]]()
    if certified is not None:
        images, curve = certified.images, _corners(certified_curve(certified.rows))
    elif published is not None:
        images, remark = f"all {len(published):,} test images, as published", ""
        curve = _corners(step_curve(published, len(published)))
    facts = {"name": card.name, "recipe": folder.recipe.name, "data": folder.recipe.data.name}
    return {**facts, "images": images, "remark": remark, "curve": curve}


def network_answer(served: Served) -> Json:
    """Return the classes, the bounds of all layers, and the sample images as one picture."""
    _, height, width = served.network.image_shape
    samples = served.samples
    return {
        "height": height,
        "width": width,
        "classes": list(served.classes),
        "lipschitz": bound_text(served.network.lipschitz),
        "layers": [{**as_plain(layer), "bound": bound_text(layer.lipschitz)} for layer in served.bounds],
        "remark": served.remark,
        "labels": [] if samples is None else samples.labels.tolist(),
        "sheet": None if samples is None else sheet(samples.images, scale=samples.scale),
        "comparison": None if served.comparison is None else _comparison(served.model, served.comparison),
    }


def _comparison(model: nn.Module, comparison: Comparison) -> Json:
    """Return both networks: how many test images each gets right, how large it is, and its curve."""
    found, rows = comparison.found, comparison.rows
    return {
        "images": len(rows),
        "beaten": comparison.beaten,
        **_opponent(model, sum(row.correct for row in rows) / len(rows), certified_curve(rows)),
        # The share of images that stay right under the attack, as a function of its budget.
        "ordinary": _opponent(comparison.ordinary, float((found > 0).double().mean()), step_curve(found, len(found))),
    }


def _opponent(network: nn.Module, accuracy: float, curve: Curve) -> Json:
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return {"accuracy": accuracy, "parameters": parameters, "curve": _corners(curve)}


def sample_pixels(served: Served, number: int) -> OneImage:
    """Return a sample image in float64."""
    samples = served.samples
    if samples is None or not 0 <= number < len(samples):
        raise BronetError(f"sample must satisfy 0 <= sample < {len(samples) if samples else 0}, got {number}")
    return samples.pixels(torch.tensor([number]), dtype=torch.float64)


def uploaded_pixels(served: Served, content: bytes) -> OneImage:
    """Return an image that was sent, of the model's size, in float64."""
    stored = read_upload(content, served.network.image_shape)
    return (stored.to(torch.float64) / WHITE)[None].to(served.network.device)


def proof_answer(served: Served, image: OneImage) -> Json:
    """Return prediction, radius, and margin and proved distance to every other class, the nearest first."""
    proved = served.network.certify(image)
    logits = served.network.logits(image)[0].tolist()
    prediction = int(proved.prediction)
    others = [number for number in range(len(logits)) if number != prediction]
    distances = [recorded(distance) for distance in proved.targeted[0].tolist()]
    rivals = [
        {"class": number, "margin": logits[prediction] - logits[number], "radius": finite_or_none(distances[number])}
        for number in sorted(others, key=lambda number: distances[number])
    ]
    return {
        "picture": picture(image[0]),
        "prediction": prediction,
        "margin": float(proved.margin),
        "radius": finite_or_none(min(distances)),
        "farthest": math.sqrt(image.numel()),
        "rivals": rivals,
    }


def drawn_answer(served: Served, image: OneImage, change: Float[Tensor, "r s"], eps: float) -> Json:
    """Return what the network says where a drawn change of length eps leads, cut to pixels in [0, 1].

    The change is drawn in cells, the same for every channel. Its length may be less than eps after the cut.
    """
    cells = change[None, None].to(image)
    direction = nn.functional.interpolate(cells, image.shape[2:], mode="nearest").expand_as(image)
    point = (image + direction * (eps / direction.norm())).clamp(0, 1)
    proved = served.network.certify(image)
    logits = served.network.logits(point)[0]
    was = int(proved.prediction)
    others = logits[torch.arange(len(logits), device=logits.device) != was]
    return {
        "prediction": int(logits.argmax()),
        "margin": float(logits[was] - others.max()),
        "margin_before": float(proved.margin),
        "distance": float((point - image).norm()),
        "picture": picture(point[0]),
    }


class Effort(NamedTuple):
    """How hard to attack, and whom to tell how far it is."""

    eps: float
    restarts: int
    progress: Progress


def attack_answer(served: Served, image: OneImage, effort: Effort) -> Json:
    """Return the strongest point that an attack found within eps: its class, its distance, and pictures of it."""
    proved = served.network.certify(image)
    radius, logits = float(proved.radius), served.network.logits
    with frozen(served.model):
        return _attacked(served.model, logits, image, proved.prediction, radius=radius, effort=effort)


def comparison_answer(served: Served, image: OneImage, effort: Effort) -> Json:
    """Return what the same attack found of the ordinary network and of the certified one."""
    if served.comparison is None:
        raise BronetError("this network has no ordinary one beside it; those of the digits have")
    network, progress = served.comparison.ordinary, effort.progress
    first = effort._replace(progress=lambda done, total: progress(done, 2 * total))
    second = effort._replace(progress=lambda done, total: progress(done + total, 2 * total))
    return {
        # Nothing is proved of the ordinary network, so its radius is 0.
        "ordinary": _attacked(network, network, image, network(image).argmax(dim=1), radius=0.0, effort=first),
        "certified": attack_answer(served, image, second),
    }


def _attacked(
    model: nn.Module, logits: Logits, image: OneImage, label: Int[Tensor, " 1"], *, radius: float, effort: Effort
) -> Json:
    eps, restarts, progress = effort
    found = attack_image(
        model, logits, image, label, radius=radius, eps=eps, steps=STEPS, restarts=restarts, progress=progress
    )
    noise, gain = noise_picture((found.point - image)[0])
    return {
        "eps": eps,
        "success": found.success,
        "refutes": found.refutes,
        "prediction": found.prediction,
        "found": found.found,
        "distance": found.distance,
        "radius": finite_or_none(found.radius),
        "picture": picture(found.point[0]),
        "noise": noise,
        "gain": gain,
    }


def _corners(curve: Curve) -> list[list[float]]:
    """Return the corners of a step function as (radius, share)."""
    pairs = zip(curve.radius.tolist(), curve.accuracy.tolist(), strict=True)
    return [[round(radius, CURVE_DIGITS), round(share, CURVE_DIGITS)] for radius, share in pairs]
