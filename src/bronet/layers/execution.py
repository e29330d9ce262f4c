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
from typing import Any, ClassVar

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


@dataclass(frozen=True)
class Derivation(ABC):
    """What is derived from a layer's kernel V; layers of equal derivations may go together in one batch.

    `differentiable` says whether the result has a gradient with respect to V. Those without are derived in batches,
    those with one by one, so that their backward passes are independent.
    """

    differentiable: ClassVar[bool] = False

    shape: torch.Size  # of the parameter
    precision: torch.dtype  # of V

    @abstractmethod
    def of(self, kernels: Sequence[Tensor]) -> list[Tensor]:
        """Return the result for each of several kernels, in one batch."""


class PreparedLayer(DerivedLayer[K, T]):
    """A layer that has something derived from its parameters ahead of its forward pass: what its last one needed.

    Precision and grid are known from a forward pass alone, and rarely change. So the first pass finds nothing prepared,
    nor does one on images of another size; the layer then computes for itself. Shapes read from a graph of the network
    would spare a run only that first pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sees_all_parameters = True  # outside its forward, too; not so where they are sharded over processes
        self.derivation: Derivation | None = None  # of the last forward
        self.derived_ahead: tuple[Tensor, SideStream] | None = None

    @property
    def prepares(self) -> bool:
        """Whether something can be computed ahead, and it pays."""
        return self.sees_all_parameters and _device_of(self).type == "cuda" and not self.keeps_derived

    def prepared(self, derivation: Derivation) -> Tensor | None:
        """Return what was derived ahead if it is this; remember the derivation for the next forward pass."""
        if self.keeps_derived or is_traced():  # torch would take an inverse, which has no gradient, for a constant
            return None
        fits, self.derivation = derivation == self.derivation, derivation
        if not fits or self.derived_ahead is None:
            return None
        result, work = self.derived_ahead
        work.keep_until_read([result])
        return result

    @abstractmethod
    def V(self, dtype: torch.dtype) -> Tensor:
        """Return the kernel that the parameters stand for, computed in this precision."""


AnyPrepared = PreparedLayer[Any, Any]


@contextmanager
def prepared(module: nn.Module) -> Iterator[None]:
    """Compute ahead what the layers needed in their last forward, and hand it out while inside.

    On a GPU only: a CPU gains nothing from it, and stays independent of whether a forward pass came before.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, PreparedLayer) and layer.prepares]
    works: list[SideStream] = []
    try:
        for derivation, group in _by_derivation(layers):
            works.extend(_derive_ahead(derivation, group))
        yield
    finally:
        for work in works:
            work.wait()
        for layer in layers:
            layer.derived_ahead = None


def _by_derivation(layers: Sequence[AnyPrepared]) -> list[tuple[Derivation, list[AnyPrepared]]]:
    """Return layers of equal derivations together, those without gradients first."""
    groups: dict[Derivation, list[AnyPrepared]] = defaultdict(list)
    for layer in layers:
        # What averages gradients over processes would not wait for those of other streams.
        if layer.derivation is not None and not (layer.derivation.differentiable and dist.is_initialized()):
            groups[layer.derivation].append(layer)
    return sorted(groups.items(), key=lambda group: group[0].differentiable)


def _derive_ahead(derivation: Derivation, layers: Sequence[AnyPrepared]) -> Iterator[SideStream]:
    """Give layers of equal derivations their results, in batches that double: the first need not wait for the last."""
    count = 1
    while layers:
        batch, layers = layers[:count], layers[count:]
        results, work = _derived_on_its_own_stream(derivation, batch)
        for layer, result in zip(batch, results, strict=True):
            layer.derived_ahead = result, work
        yield work
        if not derivation.differentiable:
            size = results[0].numel() * results[0].element_size()
            count = max(1, min(2 * count, _BATCH_BYTES // size))


def _derived_on_its_own_stream(
    derivation: Derivation, layers: Sequence[AnyPrepared]
) -> tuple[list[Tensor], SideStream]:
    device = _device_of(layers[0])
    with without_autocast(device.type):
        if derivation.differentiable:
            # A parameter's own gradient is summed up where its optimiser waits, so that V is computed there.
            kernels = [V.view_as(V) for V in (layer.V(derivation.precision) for layer in layers)]
            work = SideStream(device)
            with work():
                return derivation.of(kernels), work
        work = SideStream(device)
        with work(), torch.no_grad():
            return derivation.of([layer.V(derivation.precision) for layer in layers]), work


def _device_of(module: nn.Module) -> torch.device:
    return next(module.parameters()).device
