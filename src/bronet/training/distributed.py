"""The processes of a run: one, or many that torchrun started, each with its share of every batch.

All ranks take the same steps with the same weights; what they see of a batch is added up, so that a run does not
depend on the number of processes, up to rounding (App. B.1 trains on two and eight cards). Only the first rank
writes. A collective waits for all ranks: every rank must come to each of them in the same order.

Networks that with their optimiser exceed one GPU are sharded (FSDP2): every process holds its part of each parameter,
split along the first dimension, of its gradient and of all that the optimiser keeps for it. Each block or layer is
gathered for its forward and backward pass, and for other methods that read its parameters
(`LipschitzLayer.parameter_methods`). Buffers are whole and equal in all processes. Optimiser, averages and copies treat
every number by itself, so they work on the parts, plain tensors. Files hold whole tensors and do not tell how a run was
sharded. Torch's modules for sharding load slowly and are imported late.
"""

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bronet.errors import BronetError
from bronet.graph.model import units_of
from bronet.layers.execution import DerivedLayer
from bronet.layers.shift import Centring, local_mean
from bronet.models import CertifiableModel
from bronet.run.shares import Share

if TYPE_CHECKING:
    from typing import TypeGuard

    from torch.distributed.tensor import DTensor

BACKENDS = {"cuda": "cpu:gloo,cuda:nccl", "cpu": "gloo"}


class Processes(Share):
    """Which process this is, of how many that take every step together."""

    def sum(self, local: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
        """Return the sum over all processes; `local` is not changed."""
        return self._reduced(local, dist.ReduceOp.SUM)

    def least(self, local: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
        """Return the least value over all processes; `local` is not changed."""
        return self._reduced(local, dist.ReduceOp.MIN)

    def agreed_signal(self, number: int | None) -> int | None:
        """Return the signal that any process has received, the same everywhere; None if none has."""
        if self.world == 1:
            return number
        return -int(self.least(torch.tensor(-(number or 0)))) or None

    def any(self, here: bool) -> bool:
        """Whether it is so in any process."""
        return bool(self.sum(torch.tensor(float(here))))

    def wait(self) -> None:
        """Wait until all processes are here. Numbers on the CPU: a barrier of NCCL would have to guess its GPU."""
        self.sum(torch.zeros(()))

    def centre(self, model: nn.Module, *, over_all: bool) -> None:
        """Let the model's centring subtract the mean over the whole batch, with its gradient, or over this share alone.

        With the latter no collective is left in the forward pass.
        """
        for module in model.modules():
            if isinstance(module, Centring):
                module.mean_over_all = self._mean if over_all else local_mean

    def _mean(self, local: Tensor) -> Tensor:
        return _Sum.apply(local) / self.world  # type: ignore[no-any-return]

    def _reduced(self, local: Tensor, op: "dist.ReduceOp.RedOpType") -> Tensor:
        result = local.clone()
        if self.world > 1:
            dist.all_reduce(result, op=op)
        return result


ALONE = Processes()


class _Sum(torch.autograd.Function):
    """The sum over all processes. Every process's loss depends on it, so its gradient is summed as well."""

    @staticmethod
    def forward(ctx, local: Tensor) -> Tensor:  # type: ignore[no-untyped-def, override]
        total = local.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, *grads: Tensor) -> Tensor:  # type: ignore[no-untyped-def, override]
        return _Sum.apply(grads[0])  # type: ignore[no-any-return]


def _meeting_place(restarts: int) -> dist.Store:  # type: ignore[name-defined]
    """Return the store in which the processes find each other's addresses.

    torchrun keeps one store over its restarts, with the addresses of the dead: each attempt gets its own part of it.
    Several machines count their restarts separately; there torchrun must make new stores (docs/training.md).
    """
    store: dist.Store = next(iter(dist.rendezvous("env://")))[0]  # type: ignore[attr-defined, name-defined]
    one_machine = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    return dist.PrefixStore(f"attempt {restarts}", store) if one_machine else store  # type: ignore[attr-defined]


@contextmanager
def joined_processes(device: torch.device) -> Iterator[tuple[Processes, torch.device]]:
    """Join the processes that torchrun started, if it did; yield them and this process's device.

    On a machine with several GPUs each process gets its own. Outside torchrun the run is one process.
    """
    here = Processes.of_this_process()
    if here.world == 1 or dist.is_initialized():
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():  # where kernels are launched
            yield Processes(), device
        return
    if device.type == "cuda":
        local_rank = int(os.environ["LOCAL_RANK"])
        if local_rank >= (there := torch.cuda.device_count()):
            raise BronetError(
                f"processes per machine must be at most its {there} GPUs, got rank {local_rank}; lower --nproc-per-node"
            )
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    store = _meeting_place(here.restarts)
    dist.init_process_group(BACKENDS[device.type], store=store, rank=here.rank, world_size=here.world)
    try:
        yield here, device
    finally:
        dist.destroy_process_group()


def forward_over_all(
    forward: nn.Module, model: CertifiableModel, processes: Processes, *, device: torch.device, fsdp: bool = False
) -> nn.Module:
    """Return the forward pass of a training step, `forward`, as all processes take it together.

    Gradients are averaged during the backward pass (DDP), or the model is sharded in place (`fsdp`). Buffers are equal
    everywhere by construction (centring sees the whole batch, power iteration only the weights), so none is sent.
    """
    if processes.world == 1:
        return forward
    processes.centre(model, over_all=True)
    if fsdp:
        return shard(model, forward, device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # newer versions have two options in place of this one
        return DistributedDataParallel(forward, broadcast_buffers=False, gradient_as_bucket_view=True)


def shard(model: CertifiableModel, forward: nn.Module, device: torch.device) -> nn.Module:
    """Shard the parameters of the model over all processes, in place; each block or layer is moved to the device first.

    Returns `forward`, whose forward pass is a training step's: it must be called before any part of the model.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    # Layers return views, and none writes into what it is given.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for module in model.modules():
        if isinstance(module, DerivedLayer):
            module.sees_all_parameters = False
    for unit in dict.fromkeys(units_of(model)):
        if any(True for _ in unit.parameters()):
            fully_shard(unit, mesh=mesh, reshard_after_forward=True)
            for method in unit.parameter_methods:
                register_fsdp_forward_method(unit, method)
    fully_shard(forward, mesh=mesh)  # has no parameters of its own left, but is where a step begins and ends
    return forward


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


@torch.no_grad()
def copy_wholes(wholes: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> None:
    """Copy whole tensors into those of the same names, of which this process may hold parts."""
    for name, tensor in into.items():
        whole = wholes[name]
        if is_sharded(tensor):
            parts, rank = whole.chunk(tensor.device_mesh.size()), tensor.device_mesh.get_local_rank()
            whole = parts[rank] if rank < len(parts) else whole[:0]
        part_of(tensor).copy_(whole)


@runtime_checkable
class Stored(Protocol):
    """A part of the training state besides the model, such as the optimiser."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the state itself by name, sharded where the parameters are; names and shapes never change.

        Whoever writes into these tensors restores the state.
        """


def gathered(tensors: Mapping[str, Tensor], *, kept: bool) -> dict[str, Tensor]:
    """Return the tensors, sharded ones as wholes on the CPU, where `kept`; nothing in the other processes.

    Where tensors are sharded, every process must call this. One tensor is gathered at a time.
    """
    found = {}
    for name, tensor in tensors.items():
        whole = tensor.full_tensor().cpu() if is_sharded(tensor) else tensor
        if kept:
            found[name] = whole
    return found


def numbered(kind: str, tensors: Iterable[Tensor]) -> dict[str, Tensor]:
    """Return tensors, one per parameter, as "0.kind", "1.kind", ..."""
    return {f"{index}.{kind}": tensor for index, tensor in enumerate(tensors)}
