"""Stateless randomness: every order and every draw depends only on names and numbers.

A generator is seeded by (seed, purpose, epoch, step, ...), so that a resumed run draws the same numbers as an
uninterrupted one, with no random state to save. Another version of torch or kind of device may draw different bits.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Shaped
from torch import Tensor

from bronet.data.image_set import stable_hash
from bronet.errors import BronetError


@dataclass(frozen=True)
class BatchShare:
    """The part `start` to `stop` of a batch of `total` images that one process works on.

    Numbers are drawn for the whole batch and then divided, so that a batch does not depend on the number of processes.
    """

    start: int
    stop: int
    total: int

    @classmethod
    def of_rank(cls, total: int, *, rank: int = 0, world: int = 1) -> "BatchShare":
        """Return the share of process `rank` of `world`; they must divide the batch evenly."""
        if total % world:
            raise BronetError(
                f"images per batch must be a multiple of the {world} processes, got {total}; "
                "change train.batch_size (or data.synthetic_batch) or the number of processes"
            )
        size = total // world
        return cls(rank * size, (rank + 1) * size, total)

    def take(self, draws: Shaped[Tensor, "..."], dim: int = 0) -> Shaped[Tensor, "..."]:
        """Return this share of draws for the whole batch, which lies along `dim`."""
        return draws.narrow(dim, self.start, self.stop - self.start)


def generator_for(seed: int, purpose: str, *numbers: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a fresh generator whose draws depend on the arguments only.

    Different purposes or numbers give unrelated streams, up to the rare collision of two hashes.
    """
    return torch.Generator(device=device).manual_seed(stable_hash(seed, purpose, *numbers))
