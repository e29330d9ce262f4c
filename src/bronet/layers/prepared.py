"""Inverses for all reflectors of a model in a few batches, ahead of its forward pass.

A small inversion is bound by latency: twelve layers' worth in one batch take little longer than one layer's. The
inverses need no gradient of their own (a reflector's backward pass accounts for them), so they are plain tensors that
live for one forward pass, computed from the parameters as they are at its start.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from bronet.layers.base import DerivedLayer, without_autocast

T = TypeVar("T")

# Layers whose inverses together exceed this are inverted in several batches.
_BATCH_BYTES = 2**29


@dataclass(frozen=True)
class Inversion(ABC):
    """What layers must share to be inverted in one batch: equal ones go together."""

    shape: torch.Size
    precision: torch.dtype  # of the factorisation
    dtype: torch.dtype  # of the result

    @abstractmethod
    def invert(self, kernels: Sequence[Tensor]) -> list[Tensor]:
        """Return the inverse of the Gram matrices of each kernel, in one batch."""


class ReflectorLayer(DerivedLayer[T]):
    """A layer that can be given the inverse it needs; `inversion` is that of its last forward, None before it."""

    def __init__(self) -> None:
        super().__init__()
        self.sees_all_parameters = True  # outside its forward, too; not so where they are sharded over processes
        self.inversion: Inversion | None = None
        self.prepared_inverse: Tensor | None = None

    @property
    def prepares(self) -> bool:
        """Whether this layer's inverse can be prepared, and it pays."""
        return self.sees_all_parameters and _device_of(self).type == "cuda" and not self.keeps_derived

    def inverse_for(self, inversion: Inversion) -> Tensor | None:
        """Return the prepared inverse if it is this one; remember the inversion for the next forward pass."""
        fits = inversion == self.inversion
        self.inversion = inversion
        return self.prepared_inverse if fits else None

    @abstractmethod
    def V(self, dtype: torch.dtype) -> Tensor:
        """Return the parameters that are reflected, computed in this precision."""


@contextmanager
def prepared_inverses(module: nn.Module) -> Iterator[None]:
    """Compute the inverses of all layers whose last forward is known, and hand them out while inside.

    On a GPU only: a CPU gains nothing from it, and stays independent of whether a forward pass came before.
    """
    groups: dict[Inversion, list[ReflectorLayer]] = defaultdict(list)  # type: ignore[type-arg]
    for layer in module.modules():
        if isinstance(layer, ReflectorLayer) and layer.inversion is not None and layer.prepares:
            groups[layer.inversion].append(layer)
    try:
        with torch.no_grad():
            side_by_side([partial(_prepare, *group) for group in groups.items()], _device_of(module))
        yield
    finally:
        for layers in groups.values():
            for layer in layers:
                layer.prepared_inverse = None


def _prepare(inversion: Inversion, layers: list[ReflectorLayer]) -> None:  # type: ignore[type-arg]
    count = 1
    with without_autocast(_device_of(layers[0]).type):
        while layers:
            part, layers = layers[:count], layers[count:]
            inverses = inversion.invert([layer.V(inversion.precision) for layer in part])
            for layer, inverse in zip(part, inverses, strict=True):
                layer.prepared_inverse = inverse
            count = max(1, _BATCH_BYTES // (inverses[0].numel() * inverses[0].element_size()))


def side_by_side(tasks: Sequence[Callable[[], None]], device: torch.device) -> None:
    """Run independent tasks: on a GPU each on a stream of its own, since each is bound by latency."""
    if device.type != "cuda":
        for task in tasks:
            task()
        return
    here = torch.cuda.current_stream(device)
    streams = [torch.cuda.Stream(device) for _ in tasks]
    for stream, task in zip(streams, tasks, strict=True):
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            task()
    for stream in streams:
        here.wait_stream(stream)


def _device_of(module: nn.Module) -> torch.device:
    return next(module.parameters()).device
