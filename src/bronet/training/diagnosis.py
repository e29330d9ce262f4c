"""Where a run broke: which layer first gave a number that is not finite.

The loop checks for such numbers only now and then, because each check waits for the device. The weights are spoiled by
then, so it keeps a copy of those at the last check: the layer named is where the bad batch breaks with them.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from torch import Tensor, nn

from bronet.layers import LipschitzLayer
from bronet.models import CertifiableModel
from bronet.training.distributed import Processes, is_sharded, part_of


def find_bad_layer(model: CertifiableModel, loss: Callable[[], Tensor], processes: Processes | None = None) -> str:
    """Return in words where `loss` breaks with the model's present weights: forward, backward, or not yet.

    All processes of a run must call it: those of a sharded model can only go forward and backward together.
    """
    processes = processes or Processes()
    model.zero_grad(set_to_none=True)
    seen: list[str] = []

    def check_finite(name: str, module: nn.Module, inputs: object, output: Tensor) -> None:
        if not bool(output.isfinite().all()):
            seen.append(name)

    with ExitStack() as hooks:
        for name, layer in model.named_modules():
            if isinstance(layer, LipschitzLayer):
                hooks.callback(layer.register_forward_hook(partial(check_finite, name)).remove)
        value = loss()
    broken_here = bool(seen) or not bool(value.isfinite())
    if processes.any(broken_here):
        if not broken_here:
            return "in the forward pass of another process"
        return f"first in the output of layer {seen[0]}" if seen else "first in the loss itself"
    value.backward()  # type: ignore[no-untyped-call]
    norms = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            norm = part_of(parameter.grad).norm()
            norms[name] = float(processes.sum(norm.square()).sqrt() if is_sharded(parameter.grad) else norm)
    model.zero_grad(set_to_none=True)
    broken = [name for name, norm in norms.items() if not norm < float("inf")]
    if broken:
        return f"first in the gradient of {broken[-1]}"
    largest = max(norms, key=lambda name: norms[name])
    return f"suddenly; the largest gradient before was that of {largest}"
