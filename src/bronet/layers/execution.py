"""What layers derive from their parameters alone, computed ahead of a model's forward pass, on a GPU in parallel to it.

A small factorisation is bound by latency: twelve layers' factorisations in one batch take little longer than one, and a
GPU works on the pixels of earlier layers meanwhile. A layer waits only for its own result. Everything is computed from
the parameters at the start of a forward pass and kept for that pass. On a CPU everything happens in turn.

The inverses of reflectors need no gradient of their own, as a reflector's backward pass accounts for them; equal
layers are inverted in a few batches. A weight with a gradient has its backward pass on its own stream, too.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Generic, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bronet.layers.base import DerivedLayer, K, T, without_autocast
from bronet.ortho.products import is_traced


class SideStream:
    """A GPU stream that starts after all work queued so far and runs in parallel with the current stream.

    A tensor computed there may be read after `wait`. Its memory belongs to its stream: once the tensor is deleted,
    later work there may be given the memory before the current stream has read it. `keep_until_read` prevents that.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(device))

    def __call__(self) -> AbstractContextManager[object]:
        """Return a context whose work is queued here."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def wait(self) -> None:
        """Make the current stream wait for what was queued here; the host does not wait."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)

    def keep_until_read(self, tensors: Iterable[Tensor]) -> None:
        """Wait, and keep the memory of tensors computed here until the current stream has read them, even if deleted.

        A graph that is being recorded has memory of its own, which no other work is given.
        """
        self.wait()
        if self._stream is not None and not torch.cuda.is_current_stream_capturing():
            for tensor in tensors:
                tensor.record_stream(torch.cuda.current_stream(self._stream.device))


def side_by_side(tasks: Sequence[Callable[[], object]], device: torch.device) -> None:
    """Run independent tasks in parallel: for tasks that are bound by latency."""
    streams = [SideStream(device) for _ in tasks]
    for side, task in zip(streams, tasks, strict=True):
        with side():
            task()
    for side in streams:
        side.wait()


# The memory that the inverses of one batch may take.
_BATCH_BYTES = 2**29


class _Prepared(NamedTuple, Generic[T]):
    """A value, and the work that computes it."""

    value: T
    work: SideStream

    def awaited(self) -> T:
        """Return the value for use on the current stream."""
        parts = self.value if isinstance(self.value, tuple) else (self.value,)
        self.work.keep_until_read(part for part in parts if isinstance(part, Tensor))
        return self.value


class PreparedLayer(DerivedLayer[K, T]):
    """A layer that has something to be computed ahead of its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.sees_all_parameters = True  # outside its forward, too; not so where they are sharded over processes

    @property
    def prepares(self) -> bool:
        """Whether something can be computed ahead, and it pays."""
        return self.sees_all_parameters and _device_of(self).type == "cuda" and not self.keeps_derived


class PreparedWeightLayer(PreparedLayer[K, T]):
    """A layer whose derived weight is computed ahead as a whole, gradient included: `orthogonalize(V(key))`."""

    def __init__(self) -> None:
        super().__init__()
        self.last_key: K | None = None
        self.prepared_weight: _Prepared[T] | None = None

    def derived(self, key: K) -> T:
        """Return the derived weight: the prepared one if it is this; remember the key for the next forward pass."""
        if self.keeps_derived:
            return super().derived(key)
        fits, self.last_key = key == self.last_key, key
        return self.prepared_weight.awaited() if fits and self.prepared_weight is not None else super().derived(key)

    def derive(self, key: K) -> T:
        return self.orthogonalize(self.V(key))

    @abstractmethod
    def V(self, key: K) -> Tensor:
        """Return what the weight is derived from, as the parameters have it."""

    @abstractmethod
    def orthogonalize(self, V: Tensor) -> T:
        """Compute the derived weight."""


@dataclass(frozen=True)
class Inversion(ABC):
    """What layers must share to be inverted in one batch: equal ones go together."""

    shape: torch.Size
    precision: torch.dtype  # of the factorisation
    dtype: torch.dtype  # of the result

    @abstractmethod
    def invert(self, kernels: Sequence[Tensor]) -> list[Tensor]:
        """Return the inverse of the Gram matrices of each kernel, in one batch."""


class ReflectorLayer(PreparedLayer[K, T]):
    """A layer that can be given the inverse it needs; `inversion` is that of its last forward, None before it."""

    def __init__(self) -> None:
        super().__init__()
        self.inversion: Inversion | None = None
        self.prepared_inverse: _Prepared[Tensor] | None = None

    def inverse_for(self, inversion: Inversion) -> Tensor | None:
        """Return the prepared inverse if it is this one; remember the inversion for the next forward pass."""
        if is_traced():
            return None  # which torch would take for a constant
        fits, self.inversion = inversion == self.inversion, inversion
        return self.prepared_inverse.awaited() if fits and self.prepared_inverse is not None else None

    @abstractmethod
    def V(self, dtype: torch.dtype) -> Tensor:
        """Return the parameters that are reflected, computed in this precision."""


@contextmanager
def prepared(module: nn.Module) -> Iterator[None]:
    """Compute ahead what the layers needed in their last forward, and hand it out while inside.

    On a GPU only: a CPU gains nothing from it, and stays independent of whether a forward pass came before.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, PreparedLayer) and layer.prepares]
    reflectors = [layer for layer in layers if isinstance(layer, ReflectorLayer)]
    weighted = [layer for layer in layers if isinstance(layer, PreparedWeightLayer)]
    if weighted and dist.is_initialized():
        weighted = []  # what averages gradients over processes would not wait for those of other streams
    works: list[SideStream] = []
    try:
        works.extend(_prepare_inverses(reflectors))
        works.extend(_prepare_weights(weighted))
        yield
    finally:
        for work in works:
            work.wait()
        for reflector in reflectors:
            reflector.prepared_inverse = None
        for layer in weighted:
            layer.prepared_weight = None


def _prepare_weights(layers: Sequence[PreparedWeightLayer[K, T]]) -> Iterator[SideStream]:
    """Give every layer its weight, all in parallel."""
    for layer in layers:
        if layer.last_key is not None:
            device = _device_of(layer)
            with without_autocast(device.type):
                V = layer.V(layer.last_key)
                V = V.view_as(V)  # a parameter's own gradient is summed up where its optimiser waits
                work = SideStream(device)
                with work():
                    layer.prepared_weight = _Prepared(layer.orthogonalize(V), work)
            yield work


@torch.no_grad()
def _prepare_inverses(layers: Sequence[ReflectorLayer[K, T]]) -> Iterator[SideStream]:
    """Give every layer its inverse: equal layers in a few batches, which run in parallel."""
    groups: dict[Inversion, list[ReflectorLayer[K, T]]] = defaultdict(list)
    for layer in layers:
        if layer.inversion is not None:
            groups[layer.inversion].append(layer)
    for inversion, group in groups.items():
        yield from _invert_in_batches(inversion, group)


def _invert_in_batches(inversion: Inversion, layers: list[ReflectorLayer[K, T]]) -> Iterator[SideStream]:
    """Give equal layers their inverses, in batches that double: the first layer need not wait for the last."""
    count, device = 1, _device_of(layers[0])
    while layers:
        batch, layers = layers[:count], layers[count:]
        work = SideStream(device)
        with work(), without_autocast(device.type):
            inverses = inversion.invert([layer.V(inversion.precision) for layer in batch])
        for layer, inverse in zip(batch, inverses, strict=True):
            layer.prepared_inverse = _Prepared(inverse, work)
        yield work
        size = inverses[0].numel() * inverses[0].element_size()
        count = max(1, min(2 * count, _BATCH_BYTES // size))


def _device_of(module: nn.Module) -> torch.device:
    return next(module.parameters()).device
