"""Inverses for all reflectors of a model in a few batches, ahead of its forward pass.

A small inversion is bound by latency: twelve layers' worth in one batch take little longer than one layer's. The
inverses need no gradient of their own (a reflector's backward pass accounts for them), so they are plain tensors that
live for one forward pass, computed from the parameters as they are at its start.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from bronet.layers.base import DerivedLayer

T = TypeVar("T")

# Layers whose inverses together exceed this are inverted in several batches.
_BATCH_BYTES = 2**29


@dataclass(frozen=True)
class Inversion(ABC):
    """What layers must share to be inverted in one batch: equal ones go together."""

    shape: torch.Size
    precision: torch.dtype

    @abstractmethod
    def invert(self, kernels: Sequence[Tensor]) -> list[Tensor]:
        """Return the inverse of the Gram matrices of each kernel, in one batch."""


class ReflectorLayer(DerivedLayer[T]):
    """A layer that can be given the inverse it needs; `inversion` is that of its last forward, None before it."""

    def __init__(self) -> None:
        super().__init__()
        self.inversion: Inversion | None = None
        self.prepared_inverse: Tensor | None = None

    @abstractmethod
    def V(self, dtype: torch.dtype) -> Tensor:
        """Return the parameters that are reflected, computed in this precision."""


@contextmanager
def prepared_inverses(module: nn.Module) -> Iterator[None]:
    """Compute the inverses of all layers whose last forward is known, and hand them out while inside."""
    groups: dict[Inversion, list[ReflectorLayer]] = defaultdict(list)  # type: ignore[type-arg]
    for layer in module.modules():
        if isinstance(layer, ReflectorLayer) and layer.inversion is not None and not layer.keeps_derived:
            groups[layer.inversion].append(layer)
    try:
        for inversion, layers in groups.items():
            with torch.no_grad(), torch.autocast(next(layers[0].parameters()).device.type, enabled=False):
                _prepare(inversion, layers)
        yield
    finally:
        for layers in groups.values():
            for layer in layers:
                layer.prepared_inverse = None


def _prepare(inversion: Inversion, layers: list[ReflectorLayer]) -> None:  # type: ignore[type-arg]
    if len(layers) == 1:
        return  # a batch of one gains nothing
    count = 1
    while layers:
        part, layers = layers[:count], layers[count:]
        inverses = inversion.invert([layer.V(inversion.precision) for layer in part])
        for layer, inverse in zip(part, inverses, strict=True):
            layer.prepared_inverse = inverse
        count = max(1, _BATCH_BYTES // (inverses[0].numel() * inverses[0].element_size()))
