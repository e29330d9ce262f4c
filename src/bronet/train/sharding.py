"""Parameters sharded over the processes of a run (FSDP2), for networks that with their optimiser exceed one GPU.

Every process holds its part of each parameter, cut along the first dimension, of its gradient and of all that the
optimiser keeps for it. Each block or layer is gathered for its forward and its backward pass, and for the methods
besides the forward pass that read its parameters (`LipschitzLayer.parameter_methods`): the norm estimates of a
regularised layer and the gaps of the head. A regularised layer whose estimate has a gradient (EMMA) stays gathered from
the start of the backward pass to its own turn. Buffers are whole and equal in all processes.

Optimiser, averages and copies work on the parts, plain tensors: they treat every number by itself. Files hold whole
tensors, so they do not tell how a run was sharded. Sharding loads slowly, so this module imports torch's late.
"""

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor, nn

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
    for unit in dict.fromkeys((*model.units(), model.head)):
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


def parameter_part(parameter: nn.Parameter) -> nn.Parameter:
    """Return what an optimiser steps on: the parameter itself, or this process's part of it, in the same memory."""
    return nn.Parameter(part_of(parameter)) if is_sharded(parameter) else parameter


def cut(whole: Shaped[Tensor, "..."], like: Tensor) -> Shaped[Tensor, "..."]:
    """Return this process's part of a whole tensor, cut as `like` is."""
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
