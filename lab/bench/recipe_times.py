"""How long a proof and certificates take.

To certify, weights are those of initialisation and pixels are random: neither changes the number of operations. The
proof is made once for all images.
"""

import time
from dataclasses import dataclass

import torch

from bronet.bench.timing import hardware_name
from bronet.errors import BronetError
from bronet.graph.network import prove
from bronet.models import build_model
from bronet.recipe import dataset_spec, named_recipe
from bronet.wording import GIB
from lab.bench.timing import TimingRow


@dataclass(frozen=True)
class CertificationTime:
    """Seconds of the two parts, and the row that records their sum."""

    prove_seconds: float
    certify_seconds: float
    row: TimingRow


def bench_certify(recipe_name: str, device: torch.device, *, images: int, batch: int) -> CertificationTime:
    """Prove the network of a recipe and certify so many random images, once: nothing is warmed up."""
    if images < 1 or batch < 1:
        raise BronetError(f"images and batch must be at least 1, got {images} and {batch}")
    recipe = named_recipe(recipe_name)
    spec = dataset_spec(recipe.data.name)
    model = build_model(recipe.model, spec, device=device).eval()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    network = prove(model)
    _wait(device)
    proved = time.perf_counter()
    generator = torch.Generator(device).manual_seed(0)
    for first in range(0, images, batch):
        shape = (min(batch, images - first), spec.channels, spec.height, spec.width)
        pixels = torch.randint(256, shape, generator=generator, device=device, dtype=torch.uint8)
        network.certify(pixels.double() / 255)
    _wait(device)
    end = time.perf_counter()
    peak = torch.cuda.max_memory_allocated() / GIB if device.type == "cuda" else 0.0
    row = TimingRow(
        bench="certify",
        subject=recipe_name,
        shape=f"{images} images, batch {batch}",
        dtype="float64",
        device=hardware_name(device),
        median_ms=round((end - start) * 1e3, 3),
        spread=0.0,
        repeats=1,
        peak_gib=round(peak, 3),
    )
    return CertificationTime(proved - start, end - proved, row)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
