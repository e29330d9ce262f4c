"""Parameter transforms shared by the processes: each inverts its part of the frequencies, and all get all inverses.

The inverses of the Gram matrices are the costly part of a BRO convolution's parameter transform, and depend on the
weights only, which every process has. A process inverts one part of them and receives the others' (section 4.2's
S^-1; 2n x 2n per frequency). Gradients need no exchange of their own: the backward pass uses the inverses as numbers.
It pays where sending an inverse is faster than computing it, hence an option. Cholesky maps are not shared.
"""

from functools import partial

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from bronet.ortho.spd import Inverter
from bronet.train.processes import Processes


def shared_inverse(
    processes: Processes, invert: Inverter, S: Float[Tensor, "*batch n n"]
) -> Float[Tensor, "*batch n n"]:
    """Return the inverses of all matrices; the same numbers as `invert(S)`, computed in parts."""
    flat = S.reshape(-1, *S.shape[-2:])
    if len(flat) < processes.world:
        return invert(S)
    part = -(-len(flat) // processes.world)
    mine = flat[processes.rank * part : (processes.rank + 1) * part]
    missing = part - len(mine)
    if missing:  # all parts have the same size when they are sent
        eye = torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)
        mine = torch.cat((mine, eye.expand(missing, -1, -1)))
    everything = S.new_empty(part * processes.world, *S.shape[-2:])
    dist.all_gather(list(everything.chunk(processes.world)), invert(mine).contiguous())
    return everything[: len(flat)].view(S.shape)


def sharing(processes: Processes) -> "partial[Tensor]":
    """Return what `bronet.ortho.spd.inverting_by` wants."""
    return partial(shared_inverse, processes)
