"""Time and memory of every layer in a LipConvNet, over input size, initial width and kernel size (Figures 2, 5, 6).

One row per layer and shape: the median time of a training step (forward, loss, backward, update) and of an inference
batch with frozen weights, and memory. On a GPU memory is the peak that the allocator saw; on a CPU it is what the
training step keeps for its backward pass, parameters not counted. Steps are ordinary ones, not recorded CUDA graphs.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bronet.errors import BronetError
from bronet.layers import CONVOLUTIONS, frozen
from bronet.losses import cross_entropy
from bronet.models import CertifiableModel, build_model
from bronet.recipe.architecture import LipConvNetArchitecture
from bronet.recipe.schema import DatasetSpec
from lab.bench.complexity import lipconvnet_cost, lipconvnet_layers

ALL_KINDS = tuple(CONVOLUTIONS)
_CLASSES = 100
_CHANNELS = 3
_POWER_STEPS = 10
_AT_LEAST, _ENOUGH_SECONDS = 3, 1.0
OUT_OF_MEMORY = "out of memory"


class Point(NamedTuple):
    """The shape of a network: input size, initial width, kernel."""

    size: int
    width: int
    kernel: int


@dataclass(frozen=True)
class Sweep:
    """Shapes to measure: one factor at a time around the first of each, and every size with every width."""

    kinds: tuple[str, ...] = ALL_KINDS
    sizes: tuple[int, ...] = (32, 64)
    widths: tuple[int, ...] = (4, 8)
    kernels: tuple[int, ...] = (3, 5)
    batch: int = 8
    depth: int = 5
    repeats: int = 3

    def __post_init__(self) -> None:
        for kind in self.kinds:
            _ = CONVOLUTIONS[kind]  # a word that is not known is refused
        for name in ("kinds", "sizes", "widths", "kernels"):
            if not getattr(self, name):
                raise BronetError(f"{name} must hold at least one value, got none")
        if min(self.batch, self.repeats) < 1:
            raise BronetError(f"batch and repeats must be at least 1, got {self.batch} and {self.repeats}")

    def points(self) -> list[Point]:
        """Return the shapes to measure, each once."""
        crossed = [Point(size, width, self.kernels[0]) for size in self.sizes for width in self.widths]
        kernels = [Point(self.sizes[0], self.widths[0], kernel) for kernel in self.kernels]
        return list(dict.fromkeys([*crossed, *kernels]))


PAPER = Sweep(sizes=(32, 64), widths=(32, 48, 64), kernels=(3, 5, 7), batch=512, repeats=10)
"""The shapes of Figures 2, 5 and 6, as far as the text gives them: batch 512, ten iterations; every layer."""


@dataclass(frozen=True)
class LayerRow:
    """One measurement; seconds and bytes are None where it failed, and `memory_kind` then says why."""

    layer: str
    size: int
    width: int
    kernel: int
    batch: int
    depth: int
    parameters: int
    train_seconds: float | None
    inference_seconds: float | None
    memory_bytes: int | None
    memory_kind: str
    theory_macs: float | None
    theory_memory: float | None
    device: str


def measure(sweep: Sweep, *, device: str) -> Iterator[LayerRow]:
    """Yield a row for every shape and layer, in turn, as they are measured; one that fails does not stop the rest."""
    for point in sweep.points():
        for kind in sweep.kinds:
            yield _measure_one(kind, sweep, point, torch.device(device))


def _measure_one(kind: str, sweep: Sweep, point: Point, device: torch.device) -> LayerRow:
    size, width, kernel = point
    architecture = LipConvNetArchitecture(
        depth=sweep.depth,
        width=width,
        kernel=kernel,
        backbone=kind,  # type: ignore[arg-type]
    )
    spec = DatasetSpec("bench", _CHANNELS, size, size, _CLASSES)
    model = build_model(architecture, spec)
    parameters = sum(p.numel() for p in model.parameters())
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what a failed row left in pieces
    try:
        generator = torch.Generator().manual_seed(0)
        images = torch.rand(sweep.batch, _CHANNELS, size, size, generator=generator).to(device)
        labels = torch.randint(_CLASSES, (sweep.batch,), generator=generator).to(device)
        model = model.to(device)
        train, memory = _training(model, images, labels, repeats=sweep.repeats)
        inference = _inference(model, images, repeats=sweep.repeats)
        kind_of_memory = "peak allocated" if device.type == "cuda" else "saved for backward"
    except torch.OutOfMemoryError:
        train, inference, memory, kind_of_memory = None, None, None, OUT_OF_MEMORY
    except RuntimeError as error:  # a library's refusal: the other layers' rows still count
        train, inference, memory, kind_of_memory = None, None, None, f"failed: {first_line(error)}"
    shapes = lipconvnet_layers(
        depth=sweep.depth, width=width, batch=sweep.batch, side=size, kernel=kernel, channels=_CHANNELS
    )
    theory = lipconvnet_cost(kind, shapes, rank=architecture.rank)
    return LayerRow(
        layer=kind,
        size=size,
        width=width,
        kernel=kernel,
        batch=sweep.batch,
        depth=sweep.depth,
        parameters=parameters,
        train_seconds=train,
        inference_seconds=inference,
        memory_bytes=memory,
        memory_kind=kind_of_memory,
        theory_macs=theory.macs if theory else None,
        theory_memory=theory.memory if theory else None,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    )


def _training(model: CertifiableModel, images: Tensor, labels: Tensor, *, repeats: int) -> tuple[float, int]:
    """Return the median seconds of a training step and its memory."""
    optimiser = torch.optim.SGD(model.train().parameters(), lr=1e-3)

    def step() -> None:
        model.update_estimates(_POWER_STEPS)
        optimiser.zero_grad()
        cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    if images.is_cuda:
        torch.cuda.reset_peak_memory_stats(images.device)
        seconds = _median_seconds(step, images.device, repeats)
        return seconds, torch.cuda.max_memory_allocated(images.device)
    return _median_seconds(step, images.device, repeats), _saved_bytes(lambda: model(images))


@torch.no_grad()
def _inference(model: CertifiableModel, images: Tensor, *, repeats: int) -> float:
    """Return the median seconds of a batch, weights derived once before."""
    model.eval()
    with frozen(model):
        return _median_seconds(lambda: model(images), images.device, repeats)


def _median_seconds(action: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Return the median over `repeats` runs, after one that does not count; slow ones are repeated less often."""
    seconds: list[float] = []
    while len(seconds) <= repeats and not (len(seconds) > _AT_LEAST and sum(seconds) > _ENOUGH_SECONDS):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        action()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def _saved_bytes(forward: Callable[[], Tensor]) -> int:
    """Return the bytes of distinct storages that autograd keeps for the backward pass."""
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = forward()  # alive until counted, or addresses would be used again
    total = sum(storages.values())
    del kept
    return total


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type where there is none."""
    return next(iter(str(error).splitlines()), type(error).__name__)
