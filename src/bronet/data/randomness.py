"""Stateless randomness: every order and every draw depends only on names and numbers.

A generator is seeded by (seed, purpose, epoch, step, ...), so that a resumed run draws the same numbers as an
uninterrupted one, with no random state to save. Another version of torch or kind of device may draw different bits.
"""

import hashlib
from dataclasses import dataclass

import torch
from jaxtyping import Shaped
from torch import Tensor

from bronet.errors import BronetError

SEED_BYTES = 8
LARGEST_SEED = 2**63 - 1
"""`manual_seed` takes signed 64-bit integers."""


def stable_hash(seed: int, purpose: str, *numbers: int) -> int:
    """Return a 63-bit hash, the same in every process and on every platform (Python's `hash` is not)."""
    message = repr((int(seed), purpose, *map(int, numbers))).encode()
    return int.from_bytes(hashlib.blake2b(message, digest_size=SEED_BYTES).digest(), "big") & LARGEST_SEED


def generator_for(seed: int, purpose: str, *numbers: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a fresh generator; other purposes or numbers give unrelated streams, but for a rare collision."""
    return torch.Generator(device=device).manual_seed(stable_hash(seed, purpose, *numbers))


@dataclass(frozen=True)
class BatchShare:
    """The images that one process works on: so many, from `start`, of a batch of `total`.

    Numbers are drawn for the whole batch and then divided, so that a batch does not depend on the number of processes.
    """

    start: int
    size: int
    total: int

    @classmethod
    def of_rank(cls, total: int, *, rank: int = 0, world: int = 1) -> "BatchShare":
        """Return the share of process `rank` of `world`; they must divide the batch evenly."""
        if total % world:
            raise BronetError(f"images per batch must be a multiple of the {world} processes, got {total}")
        size = total // world
        return cls(rank * size, size, total)

    def take(self, draws: Shaped[Tensor, "..."], dim: int = 0) -> Shaped[Tensor, "..."]:
        """Return this share of draws for the whole batch, which lies along `dim`."""
        return draws.narrow(dim, self.start, self.size)
