"""What layers derive from their parameters alone: kept while these are frozen, on a GPU computed ahead in training.

Derived weights are computed anew in each forward, except inside `frozen(...)`, where they are kept as long as the
parameters do not change. A CPU computes them in turn. On a GPU a small factorisation is bound by latency: twelve
layers' factorisations in one batch take little longer than one, and the GPU works on the pixels of earlier layers
meanwhile. They begin with the forward pass, whose layers wait for their own results alone (`prepared`).

The inverses of reflectors need no gradient of their own, as a reflector's backward pass accounts for them; equal
layers are inverted in a few batches. A weight with a gradient has its backward pass on its own stream, too.
"""

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bronet.layers.base import LipschitzLayer, require_counts, without_autocast
from bronet.ortho.products import is_traced, memoized

# The memory that the inverses of one batch may take.
_BATCH_BYTES = 2**29

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


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


class IdentityResidual(nn.Module):
    """Kernels (m, n, k, k) and matrices (m, n) near the identity: V = I + alpha / sqrt(L) weight (App. B.2).

    I has ones at the centre tap of channel pairs i, i; alpha is one learned number per output channel that starts at
    one, as in the published networks (the text says a scalar); L, the `residual_depth`, counts the layers of the block.
    """

    def __init__(self, weight: Tensor, depth: int) -> None:
        super().__init__()
        require_counts(residual_depth=depth)
        self.depth = depth
        self.alpha = nn.Parameter(weight.new_ones(weight.shape[0]))

    def forward(self, weight: Tensor) -> Tensor:
        scale = (self.alpha.to(weight.dtype) / math.sqrt(self.depth)).view(-1, *(1 for _ in weight.shape[1:]))
        return torch.addcmul(identity_kernel(weight.shape, weight.device, weight.dtype), scale, weight)


@memoized(32)
def identity_kernel(shape: torch.Size, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the identity matrix (m, n), or the identity kernel (m, n, kh, kw) at the centre tap.

    It is made on the CPU: a copy to a GPU has arrived when it returns, so any stream may use what another asked for.
    """
    is_matrix = len(shape) == 2
    return (torch.eye(*shape, dtype=dtype) if is_matrix else nn.init.dirac_(torch.empty(shape, dtype=dtype))).to(device)


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


class DerivedLayer(LipschitzLayer, Generic[K, T]):
    """A layer whose weights T are derived from its parameters and a key K: the precision, perhaps the grid.

    While training on a GPU, a layer may be given a result ahead of its forward pass: that of its last `derivation`.
    Precision and grid are known from a forward pass alone, and rarely change. So the first pass finds nothing, nor does
    one on images of another size; the layer then computes for itself. Shapes read from a graph of the network would
    spare a run only that first pass.
    """

    weight: nn.Parameter
    residual: IdentityResidual | None

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[K, tuple[Hashable, T]] | None = None
        self.portable = False  # inside `frozen`: whether the weights must suit every batch, in plain products
        self.sees_all_parameters = True  # outside its forward, too; not so where they are sharded over processes
        self.derivation: Derivation | None = None  # of the last forward
        self.derived_ahead: tuple[Tensor, SideStream] | None = None

    def own_kernel(self, weight: Tensor, residual_depth: int | None = None) -> None:
        """Make this the layer's parameter, re-parameterised near the identity if the depth of residuals is given."""
        self.weight = nn.Parameter(weight)
        self.residual = None if residual_depth is None else IdentityResidual(weight, residual_depth)

    def V(self, dtype: torch.dtype) -> Tensor:
        """Return the kernel or matrix that the parameters stand for, computed in this precision."""
        weight = self.weight.to(dtype)
        return weight if self.residual is None else self.residual(weight)

    @abstractmethod
    def derive(self, key: K) -> T:
        """Compute the derived weights; `key` is all that they depend on besides the parameters."""

    def derived(self, key: K) -> T:
        """Return the derived weights: inside `frozen` the kept ones, if they are still those of the parameters.

        While torch.export traces, parameters may be stand-ins without memory: there the kept ones are taken as they
        are, which supposes a forward pass inside `frozen` before (`bronet.export` makes it).
        """
        if self._kept is None:
            return self._derive_at_full_precision(key)
        if torch.compiler.is_exporting():
            return self._kept[key][1]
        state = tuple((t.data_ptr(), t._version, t.dtype) for t in (*self.parameters(), *self.buffers()))
        kept = self._kept.get(key)
        if kept is None or kept[0] != state:
            with torch.no_grad():
                kept = (state, self._derive_at_full_precision(key))
            self._kept[key] = kept
        return kept[1]

    @property
    def keeps_derived(self) -> bool:
        """Whether the layer is inside `frozen`, so that no gradient is wanted for its parameters."""
        return self._kept is not None

    def _derive_at_full_precision(self, key: K) -> T:
        with without_autocast(_device_of(self).type):
            return self.derive(key)

    def precision_for(self, x: Tensor) -> torch.dtype:
        """Return the precision of factorisations for an input: float64 for float64, else float32 at least."""
        dtype = x.dtype if x.dtype == torch.float64 else next(self.parameters()).dtype
        return torch.promote_types(torch.float32, dtype)

    @property
    def prepares(self) -> bool:
        """Whether something can be computed ahead, and it pays."""
        known = self.derivation is not None and self.sees_all_parameters and not self.keeps_derived
        return known and _device_of(self).type == "cuda"

    def result_ahead(self, derivation: Derivation) -> Tensor | None:
        """Return what was derived ahead if it is this; remember the derivation for the next forward pass."""
        if self.keeps_derived or is_traced():  # torch would take an inverse, which has no gradient, for a constant
            return None
        fits, self.derivation = derivation == self.derivation, derivation
        if not fits or self.derived_ahead is None:
            return None
        result, work = self.derived_ahead
        work.keep_until_read([result])
        return result


AnyDerived = DerivedLayer[Any, Any]


@contextmanager
def frozen(module: nn.Module, *, portable: bool = False) -> Iterator[nn.Module]:
    """Keep derived weights while inside: for evaluation, where many batches share the same parameters.

    No gradient reaches the parameters inside. The kept weights are dropped at the end, and recomputed within if a
    parameter is loaded, stepped or moved. What is written through `parameter.data`, which torch does not count as a
    change, goes unseen. On a CPU layers keep what is fastest for their shapes; with `portable` the same for every
    batch, applied in real products alone: what can be exported.
    """
    layers = [m for m in module.modules() if isinstance(m, DerivedLayer)]
    outer = [(layer._kept, layer.portable) for layer in layers]
    for layer in layers:
        layer._kept = {} if layer._kept is None or portable != layer.portable else layer._kept
        layer.portable = portable
    try:
        yield module
    finally:
        for layer, (kept, was_portable) in zip(layers, outer, strict=True):
            layer._kept, layer.portable = kept, was_portable


@contextmanager
def prepared(module: nn.Module) -> Iterator[None]:
    """Compute ahead what the layers needed in their last forward, and hand it out while inside.

    On a GPU only: a CPU gains nothing from it, and stays independent of whether a forward pass came before.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, DerivedLayer) and layer.prepares]
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


def _by_derivation(layers: Sequence[AnyDerived]) -> list[tuple[Derivation, list[AnyDerived]]]:
    """Return layers of equal derivations together, those without gradients first."""
    groups: dict[Derivation, list[AnyDerived]] = defaultdict(list)
    for layer in layers:
        # What averages gradients over processes would not wait for those of other streams.
        if layer.derivation is not None and not (layer.derivation.differentiable and dist.is_initialized()):
            groups[layer.derivation].append(layer)
    return sorted(groups.items(), key=lambda group: group[0].differentiable)


def _derive_ahead(derivation: Derivation, layers: Sequence[AnyDerived]) -> Iterator[SideStream]:
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


def _derived_on_its_own_stream(derivation: Derivation, layers: Sequence[AnyDerived]) -> tuple[list[Tensor], SideStream]:
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
