"""Where a run broke: which layer first gave a number that is not finite, and what to try.

The loop checks for such numbers only now and then, because each check waits for the device. By then the weights are
spoiled, so it keeps a copy of those at the last check and runs the bad batch through them: the layer named is the one
seen from there, at most a few steps before the break.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from bronet.layers import LipschitzLayer
from bronet.models import CertifiableModel
from bronet.recipe.schema import Recipe
from bronet.train.distributed import Processes
from bronet.train.sharding import is_sharded, part_of

Loss = Callable[[], Tensor]


def advice_for(recipe: Recipe) -> str:
    """Return what may keep a run like this one from diverging."""
    precise = ", or set train.precision=float32" if recipe.train.precision != "float32" else ""
    return f"lower optim.lr or optim.clip_norm{precise}, and start it anew (--overwrite)"


class Snapshot:
    """A copy of what this process holds of a model's weights and buffers, on its own device."""

    def __init__(self, model: nn.Module) -> None:
        self.current = [part_of(tensor) for tensor in model.state_dict().values()]
        self.kept = [tensor.clone() for tensor in self.current]
        self.step = 0

    @torch.no_grad()
    def take(self, step: int) -> None:
        """Copy the weights as they are after `step` steps."""
        torch._foreach_copy_(self.kept, self.current)
        self.step = step

    @torch.no_grad()
    def restore(self) -> None:
        """Put the kept weights back into the model."""
        torch._foreach_copy_(self.current, self.kept)


def find_bad_layer(model: CertifiableModel, loss: Loss, processes: Processes | None = None) -> str:
    """Return in words where `loss` breaks with the model's present weights: forward, backward, or not yet.

    All processes of a run must call it: those of a sharded model can only go forward and backward together.
    """
    processes = processes or Processes()
    model.zero_grad(set_to_none=True)
    seen: list[str] = []
    with _watched(model, seen):
        value = loss()
    broken_here = bool(seen) or not bool(value.isfinite())
    if processes.any(broken_here):
        if not broken_here:
            return "in the forward pass of another process"
        return f"first in the output of layer {seen[0]}" if seen else "first in the loss itself"
    value.backward()  # type: ignore[no-untyped-call]
    norms = {name: _norm(p.grad, processes) for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    broken = [name for name, norm in norms.items() if not norm < float("inf")]
    if broken:
        return f"first in the gradient of {broken[-1]}"
    largest = max(norms, key=lambda name: norms[name])
    return f"suddenly; the largest gradient before was that of {largest}"


def _norm(gradient: Tensor, processes: Processes) -> float:
    """Return the norm of a whole gradient."""
    norm = part_of(gradient).norm()
    return float(processes.sum(norm.square()).sqrt() if is_sharded(gradient) else norm)


@contextmanager
def _watched(model: CertifiableModel, seen: list[str]) -> Iterator[None]:
    """Write down the layers, in the order of the forward pass, whose outputs are not finite."""

    def check_finite(name: str, module: nn.Module, inputs: object, output: Tensor) -> None:
        if not bool(output.isfinite().all()):
            seen.append(name)

    layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, LipschitzLayer)]
    handles = [layer.register_forward_hook(partial(check_finite, name)) for name, layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
