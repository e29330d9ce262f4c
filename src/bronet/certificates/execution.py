"""What is left of certificates where a program runs in fewer digits: proved for float32, measured for the network.

Proved: the program of the proof, its numbers rounded to float32 and every operation in float32, gives the class of the
certificate at every float32 point within the smaller radius. The assumptions are those of docs/soundness.md with
u = 2^-24: sums in any order, with or without fused multiply-add, but no TF32. A stored number counts as rounded with
every product that it enters; what underflows is counted where it does (`bronet.proof.proved_map.FLOAT32`).

Measured: how often the network's own forward pass, whose operations are others, gives another class at the images
themselves. That proves nothing of other points.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from bronet.certificates.run import images_at_once
from bronet.data import load_images
from bronet.errors import BronetError
from bronet.graph.network import prove
from bronet.layers import frozen
from bronet.proof.proved_map import FLOAT32, executed_in
from bronet.radius import certified_at
from bronet.recipe.schema import parse_budget
from bronet.run.certificate import read_certificate
from bronet.run.folder import RunFolder, open_run
from bronet.run.weights import load_model

Execution = Literal["float32", "bf16"]


@dataclass(frozen=True)
class Executed:
    """Certificates in float64, those that are proved for the execution (None in bf16), and the measured differences.

    `certified` has a pair of shares for every radius asked for: in float64, and proved for the execution.
    """

    images: int
    radii: int
    surviving: int | None
    certified: dict[str, tuple[float, float]]
    other_classes: int
    largest_difference: float


@torch.no_grad()
def execute_run(
    run: RunFolder | Path | str,
    execution: Execution,
    *,
    split: str = "test",
    device: torch.device | str = "cpu",
    data_dir: Path | str | None = None,
) -> Executed:
    """Return what is left of a run's certificate in another execution, float32 or bf16; nothing is written."""
    run = open_run(run)
    certificate = read_certificate(run.certificate(split).facts)
    images = load_images(run.recipe.data, split, limit=certificate.images, data_dir=data_dir, classes=run.classes())
    images, model = images.to(device), load_model(run, device=device)
    network = prove(model, shape := tuple(images.images.shape[1:]))
    with executed_in(FLOAT32):
        shorter = prove(model, shape) if execution == "float32" else None
    columns: list[tuple[Tensor, ...]] = []
    with frozen(model):
        for index in torch.arange(len(images), device=images.labels.device).split(images_at_once(network.device)):
            pixels = images.pixels(index, dtype=torch.float64)
            wide = network.certify(pixels)
            with executed_in(FLOAT32):
                narrow = shorter.certify(pixels).radius if shorter else torch.zeros_like(wide.radius)
            logits = _logits(model, pixels, execution)
            other = logits.argmax(dim=1) != wide.prediction
            distance = (logits - network.logits(pixels)).abs().amax(dim=1)
            columns.append((wide.prediction == images.labels[index], wide.radius, narrow, other, distance))
    correct, wide_radius, narrow_radius, other, distance = (torch.cat(column) for column in zip(*columns, strict=True))

    def certified(radius: Tensor, eps: str) -> float:
        return float(certified_at(radius, correct, parse_budget(eps)).double().mean())

    return Executed(
        images=len(images),
        radii=int((wide_radius > 0).sum()),
        surviving=int((narrow_radius > 0).sum()) if shorter else None,
        certified={eps: (certified(wide_radius, eps), certified(narrow_radius, eps)) for eps in certificate.eps},
        other_classes=int(other.sum()),
        largest_difference=float(distance.max()),
    )


def _logits(model: nn.Module, pixels: Tensor, execution: Execution) -> Tensor:
    try:
        with torch.autocast(pixels.device.type, dtype=torch.bfloat16, enabled=execution == "bf16"):
            return model(pixels.float()).double()
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise BronetError(f"{execution} must be known to every layer on this device, but: {reason}") from None
