"""Stateless randomness: the order of every epoch and the noise of every step follow from names and numbers.

A generator is seeded by (seed, purpose, epoch, step, ...), so that a resumed run draws what the uninterrupted
run would have drawn, with no random state to save (App. B trains with shuffled mini-batches). The bits are
those of one torch version and one kind of device; another version may draw different ones.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from bronet.errors import BronetError

SEED_BYTES = 8
LARGEST_SEED = 2**63 - 1
"""`manual_seed` takes signed 64-bit integers."""


@dataclass(frozen=True)
class Share:
    """The part `start` to `stop` of a batch of `total` images that one process works on.

    Draws are made for the whole batch and cut, so that the images of a batch do not depend on how it is shared.
    """

    start: int
    stop: int
    total: int

    @classmethod
    def whole(cls, total: int) -> "Share":
        """Return the share of a process that works alone."""
        return cls(0, total, total)

    @classmethod
    def of_rank(cls, total: int, *, rank: int, world: int) -> "Share":
        """Return the share of process `rank` of `world`; they must divide the batch evenly."""
        if total % world:
            raise BronetError(
                f"images per batch must be a multiple of the {world} processes, got {total}; "
                "change train.batch_size (or data.synthetic_batch) or the number of processes"
            )
        size = total // world
        return cls(rank * size, (rank + 1) * size, total)

    def cut(self, draws: Shaped[Tensor, "..."], dim: int = 0) -> Shaped[Tensor, "..."]:
        """Return this share of draws for the whole batch, which lies along `dim`."""
        return draws.narrow(dim, self.start, self.stop - self.start)


def stable_hash(seed: int, purpose: str, *numbers: int) -> int:
    """Return a 63-bit hash, the same in every process and on every platform (Python's `hash` is not)."""
    message = repr((int(seed), purpose, *map(int, numbers))).encode()
    return int.from_bytes(hashlib.blake2b(message, digest_size=SEED_BYTES).digest(), "big") & LARGEST_SEED


def generator_for(seed: int, purpose: str, *numbers: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a fresh generator whose draws depend on the arguments only.

    Different purposes or numbers give unrelated streams, up to the rare collision of two hashes.
    """
    return torch.Generator(device=device).manual_seed(stable_hash(seed, purpose, *numbers))


def epoch_order(n: int, *, seed: int, epoch: int) -> Int64[Tensor, " n"]:
    """Return the permutation of 0 .. n - 1 in which an epoch visits its images, on the CPU."""
    return torch.randperm(n, generator=generator_for(seed, "epoch order", epoch))


def steps_per_epoch(n: int, batch_size: int) -> int:
    """Return the number of full batches of an epoch, at least one."""
    if batch_size < 1:
        raise BronetError(f"batch size must be at least 1, got {batch_size}")
    if n < batch_size:
        raise BronetError(
            f"batch size must be at most the number of training images = {n}, got {batch_size}; "
            "choose a smaller batch size"
        )
    return n // batch_size


def endless_batch(n: int, size: int, *, seed: int, purpose: str, step: int) -> Int64[Tensor, " size"]:
    """Return the images that step `step` takes from a stream that visits n images pass after pass.

    Each pass has its own order, and a batch may reach from one into the next, so n need not be a multiple of
    `size`: generated images are visited at their own pace. The result depends on the arguments only.
    """
    if n < 1 or size < 1:
        raise BronetError(f"images and batch size must be at least 1, got {n} and {size}")
    first, parts = step * size, []
    while first < (step + 1) * size:
        number, position = divmod(first, n)
        taken = min(n - position, (step + 1) * size - first)
        parts.append(_pass_order(n, seed, purpose, number)[position : position + taken])
        first += taken
    return torch.cat(parts)


@lru_cache(maxsize=2)
def _pass_order(n: int, seed: int, purpose: str, number: int) -> Int64[Tensor, " n"]:
    """Consecutive steps share a pass, and millions of images take a while to shuffle: two passes are kept."""
    return torch.randperm(n, generator=generator_for(seed, purpose, number))
