"""The processes of a run: one, or many that torchrun started, each with its share of every batch.

All ranks take the same steps with the same weights; what they see of a batch is added up, so that a run does not
depend on the number of processes, up to rounding (App. B.1 trains on two and eight cards). Only the first rank
writes. A collective waits for all ranks: every rank must come to each of them in the same order.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bronet.errors import BronetError
from bronet.layers.shift import Centring, local_mean
from bronet.models import CertifiableModel
from bronet.train.sharding import shard

WORLD_VARIABLE = "WORLD_SIZE"
BACKENDS = {"cuda": "cpu:gloo,cuda:nccl", "cpu": "gloo"}


@dataclass(frozen=True)
class Processes:
    """Which process this is, of how many, and how often torchrun had to start them again."""

    rank: int = 0
    world: int = 1
    restarts: int = 0

    @property
    def is_main(self) -> bool:
        """Whether this process writes and shows."""
        return self.rank == 0

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
        largest = -int(self.least(torch.tensor(-(number or 0))))
        return largest or None

    def any(self, here: bool) -> bool:
        """Whether it is so in any process."""
        return bool(self.sum(torch.tensor(float(here))))

    def wait(self) -> None:
        """Wait until all processes are here. Numbers on the CPU: a barrier of NCCL would have to guess its GPU."""
        self.sum(torch.zeros(()))

    def centre_over_all(self, model: nn.Module) -> None:
        """Let the model's centring subtract the mean over the whole batch, not over this process's share.

        The gradient flows through the mean of all processes: a share of the batch gets what the others' losses say.
        """
        if self.world == 1:
            return
        for module in model.modules():
            if isinstance(module, Centring):
                module.mean_over_all = self._mean

    def centre_locally(self, model: nn.Module) -> None:
        """Undo `centre_over_all`: no collective is left in the forward pass."""
        for module in model.modules():
            if isinstance(module, Centring):
                module.mean_over_all = local_mean

    def _mean(self, local: Tensor) -> Tensor:
        total: Tensor = _Sum.apply(local)
        return total / self.world

    def _reduced(self, local: Tensor, op: "dist.ReduceOp.RedOpType") -> Tensor:
        result = local.clone()
        if self.world > 1:
            dist.all_reduce(result, op=op)
        return result


class _Sum(torch.autograd.Function):
    """The sum over all processes. Every process's loss depends on it, so its gradient is summed as well."""

    @staticmethod
    def forward(ctx, local: Tensor) -> Tensor:  # type: ignore[no-untyped-def, override]
        return _summed(local)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> Tensor:  # type: ignore[no-untyped-def, override]
        return _summed(grads[0])


def _summed(local: Tensor) -> Tensor:
    total = local.contiguous().clone()
    dist.all_reduce(total)
    return total


def _meeting_place(restarts: int) -> dist.Store:  # type: ignore[name-defined]
    """Return the store in which the processes find each other's addresses.

    torchrun keeps one store over its restarts, with the addresses of processes that are gone: each attempt gets its
    own part of it. Several machines count their restarts separately; there torchrun must make new stores
    (TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, see docs/training.md).
    """
    store: dist.Store = next(iter(dist.rendezvous("env://")))[0]  # type: ignore[attr-defined, name-defined]
    one_machine = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    return dist.PrefixStore(f"attempt {restarts}", store) if one_machine else store  # type: ignore[attr-defined]


@contextmanager
def joined_processes(device: torch.device) -> Iterator[tuple[Processes, torch.device]]:
    """Join the processes that torchrun started, if it did; yield them and this process's device.

    On a machine with several GPUs each process gets its own. Outside torchrun the run is one process.
    """
    world = int(os.environ.get(WORLD_VARIABLE, "1"))
    if world == 1 or dist.is_initialized():
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():  # where kernels are launched
            yield Processes(), device
        return
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    if device.type == "cuda":
        if local_rank >= torch.cuda.device_count():
            raise BronetError(
                f"processes per machine must be at most its {torch.cuda.device_count()} GPUs, got rank {local_rank}; "
                "lower torchrun's --nproc-per-node"
            )
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    dist.init_process_group(BACKENDS[device.type], store=_meeting_place(restarts), rank=rank, world_size=world)
    try:
        yield Processes(rank, world, restarts), device
    finally:
        dist.destroy_process_group()


def forward_over_all(
    forward: nn.Module, model: CertifiableModel, processes: Processes, *, device: torch.device, fsdp: bool = False
) -> nn.Module:
    """Return the forward pass of a training step, `forward`, as all processes take it together.

    Gradients are averaged during the backward pass (DDP). With `fsdp` (FSDP2) the model's parameters are sharded over
    the processes, in place, and moved to the device part by part. Buffers are equal everywhere by construction
    (centring sees the whole batch, power iteration only the weights), so none is sent.
    """
    if processes.world == 1:
        return forward
    processes.centre_over_all(model)
    if fsdp:
        shard(model, forward, device)
        return forward
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # newer versions have two options in place of this one
        return DistributedDataParallel(forward, broadcast_buffers=False, gradient_as_bucket_view=True)
