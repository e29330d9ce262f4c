"""Parameters sharded over the processes of a run (FSDP2), for networks that with their optimiser exceed one GPU.

Every process holds its part of each parameter, split along the first dimension, of its gradient and of all that the
optimiser keeps for it. Each block or layer is gathered for its forward and its backward pass, and for the methods
besides the forward pass that read its parameters (`LipschitzLayer.parameter_methods`): the norm estimates of a
regularised layer and the gaps of the head. A regularised layer whose estimate has a gradient (EMMA) stays gathered from
the start of the backward pass to its own turn. Buffers are whole and equal in all processes.

Optimiser, averages and copies work on the parts, plain tensors: they treat every number by itself. Files hold whole
tensors, so they do not tell how a run was sharded. Sharding loads slowly, so this module imports torch's late.
"""

import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor, nn

from bronet.graph.estimate import units_of
from bronet.layers.execution import PreparedLayer
from bronet.models import CertifiableModel

if TYPE_CHECKING:
    from typing import TypeGuard

    from torch.distributed.tensor import DTensor


def shard(model: CertifiableModel, forward: nn.Module, device: torch.device) -> None:
    """Shard the parameters of the model over all processes, in place; each block or layer is moved to the device first.

    `forward` is the module whose forward pass is a training step's: it must be called before any part of the model.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    # Layers return views, and none writes into what it is given.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for module in model.modules():
        if isinstance(module, PreparedLayer):
            module.sees_all_parameters = False
    for unit in dict.fromkeys(units_of(model)):
        if any(True for _ in unit.parameters()):
            fully_shard(unit, mesh=mesh, reshard_after_forward=True)
            for method in unit.parameter_methods:
                register_fsdp_forward_method(unit, method)
    fully_shard(forward, mesh=mesh)  # has no parameters of its own left, but is where a step begins and ends


def is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether a tensor of a model is one of which each process holds a part."""
    if type(tensor) in (Tensor, nn.Parameter):
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def part_of(tensor: Tensor) -> Tensor:
    """Return what this process holds of a tensor of a model, without gradient: its part, or all of it. No copy."""
    tensor = tensor.detach()
    return tensor.to_local() if is_sharded(tensor) else tensor


def shard_of(whole: Shaped[Tensor, "..."], like: Tensor) -> Shaped[Tensor, "..."]:
    """Return this process's part of a whole tensor, sharded as `like` is."""
    if not is_sharded(like):
        return whole
    parts, rank = whole.chunk(like.device_mesh.size()), like.device_mesh.get_local_rank()
    return parts[rank] if rank < len(parts) else whole[:0]


def spread(part: Tensor, like: Tensor) -> Tensor:
    """Return the tensor of which this is the part of this process, sharded as `like` is; nothing is sent."""
    if not is_sharded(like):
        return part
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


@torch.no_grad()
def copy_wholes(wholes: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> None:
    """Copy whole tensors into those of the same names, of which this process may hold parts."""
    for name, tensor in into.items():
        part_of(tensor).copy_(shard_of(wholes[name], tensor))


def gathered(tensors: Mapping[str, Tensor], *, kept: bool) -> dict[str, Tensor]:
    """Return the tensors, sharded ones as wholes on the CPU, where `kept`; nothing in the other processes.

    Where tensors are sharded, every process must call this. One tensor is gathered at a time.
    """
    found = {}
    for name, tensor in tensors.items():
        whole = tensor.full_tensor() if is_sharded(tensor) else tensor
        if kept:
            found[name] = whole.cpu() if is_sharded(tensor) else whole
    return found


class Parameters:
    """The parameters that are trained, and of each the part that an optimiser steps on: all of it, or this process's.

    A part lies in the memory of its parameter, so a step changes the model.
    """

    def __init__(self, wholes: Iterable[nn.Parameter]) -> None:
        self.wholes = list(wholes)
        self.parts = [nn.Parameter(part_of(whole)) if is_sharded(whole) else whole for whole in self.wholes]

    @property
    def sharded(self) -> bool:
        """Whether this process holds only a part of some parameter."""
        return any(is_sharded(whole) for whole in self.wholes)

    def drop_gradients(self) -> None:
        """Forget all gradients."""
        for part, whole in zip(self.parts, self.wholes, strict=True):
            part.grad = whole.grad = None

    def take_gradients(self) -> list[nn.Parameter]:
        """Give each part its part of the gradient, and return the parts that have one."""
        for part, whole in zip(self.parts, self.wholes, strict=True):
            if part is not whole:
                part.grad = None if whole.grad is None else part_of(whole.grad)
        return [part for part in self.parts if part.grad is not None]

    def like_wholes(self, name: str, tensors: Iterable[Tensor]) -> dict[str, Tensor]:
        """Return one tensor per parameter as "0.name", "1.name", ..., each sharded as its parameter is."""
        pairs = enumerate(zip(tensors, self.wholes, strict=True))
        return {f"{index}.{name}": spread(tensor, whole) for index, (tensor, whole) in pairs}
