"""The batches of a run: real images, mixed with generated ones if the recipe says so, augmented (App. B.5 and B.6).

An epoch is one pass over the real images; passes over the generated images are independent of it. The batch and the
augmentation of a step depend only on (seed, step), so starting at any step, in any number of processes, gives the same
images. RandAugment comes after cropping, so that it runs on the training device.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from bronet.data.augment import augment
from bronet.data.randomness import BatchShare, generator_for
from bronet.data.stream import ImageStream, PlannedBatch
from bronet.errors import BronetError
from bronet.recipe.schema import Recipe


class Batch(NamedTuple):
    """Augmented pixels in [0, 1] and labels, on the training device: this process's share of the batch."""

    pixels: Float[Tensor, "b c h w"]
    labels: Int64[Tensor, " b"]


class MixedBatches:
    """All batches of a run, from any step on; process `rank` of `world` gets its share of each."""

    def __init__(
        self,
        recipe: Recipe,
        real: ImageStream,
        synthetic: ImageStream | None = None,
        *,
        device: torch.device,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.data, self.seed, self.scale = recipe.data, recipe.train.seed, recipe.data.spec().scale
        if bool(self.data.synthetic_batch) != (synthetic is not None):
            raise BronetError(f"data.synthetic_batch = {self.data.synthetic_batch} needs the generated images, too")
        self.real, self.synthetic, self.device = real, synthetic, device
        self.real_batch = recipe.train.batch_size - self.data.synthetic_batch
        self.real_share = BatchShare.of_rank(self.real_batch, rank=rank, world=world)
        self.synthetic_share = BatchShare.of_rank(self.data.synthetic_batch, rank=rank, world=world)
        self.steps_per_epoch = steps_per_epoch(len(real), self.real_batch)

    def between(self, start: int, stop: int) -> Iterator[Batch]:
        """Yield the batches of the steps `start` to `stop` - 1, counted from the beginning of the run."""
        steps = range(start, stop)
        parts = [(self.real, self._real_plan, "augment", self.data, self.real_share)]
        if self.synthetic is not None:
            padding, probability = self.data.synthetic_crop_padding, self.data.synthetic_randaugment_probability
            own = replace(self.data, crop_padding=padding, randaugment_probability=probability)
            parts += [(self.synthetic, self._synthetic_plan, "augment synthetic", own, self.synthetic_share)]
        delivered = [stream.deliver(map(plan, steps)) for stream, plan, *_ in parts]
        for step, *stored in zip(steps, *delivered, strict=True):
            images = []
            for (bytes_of_images, _), (stream, _, purpose, data, share) in zip(stored, parts, strict=True):
                left = replace(data, crop_padding=0, flip=False) if stream.cropped else data
                draw = generator_for(self.seed, purpose, step, device=self.device)
                images.append(augment(bytes_of_images, draw, left, share=share))
            yield Batch(torch.cat(images).float() / self.scale, torch.cat([labels for _, labels in stored]))

    def _real_plan(self, step: int) -> PlannedBatch:
        epoch, position = divmod(step, self.steps_per_epoch)
        order = pass_order(len(self.real), self.seed, "epoch order", epoch)
        first = position * self.real_batch
        return PlannedBatch(epoch, self.real_share.take(order[first : first + self.real_batch]))

    def _synthetic_plan(self, step: int) -> PlannedBatch:
        assert self.synthetic is not None
        size, n = self.data.synthetic_batch, len(self.synthetic)
        index = endless_batch(n, size, seed=self.seed, purpose="synthetic order", step=step)
        return PlannedBatch(step * size // n, self.synthetic_share.take(index))


def prepared_ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield the same batches; on a GPU each is prepared, on a separate stream, during the step on the previous one."""
    if device.type != "cuda":
        yield from batches
        return
    side, main = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    side.wait_stream(main)  # the images may still be on their way to the device
    batch = _prepared_on(side, batches)
    while batch is not None:
        main.wait_stream(side)
        for tensor in batch:
            tensor.record_stream(main)  # made on one stream, used on the other: its memory must not be reused early
        yield batch
        batch = _prepared_on(side, batches)  # the step on the previous batch is already queued


def steps_per_epoch(n: int, batch_size: int) -> int:
    """Return the number of full batches of an epoch, at least one."""
    if not 1 <= batch_size <= n:
        limit = "at least 1" if batch_size < 1 else f"at most the number of training images = {n}"
        raise BronetError(f"batch size must be {limit}, got {batch_size}; choose another train.batch_size")
    return n // batch_size


def endless_batch(n: int, size: int, *, seed: int, purpose: str, step: int) -> Int64[Tensor, " size"]:
    """Return the images of step `step` from a stream that visits n images pass after pass, each in its own order.

    A batch may reach from one pass into the next, so n need not be a multiple of `size`.
    """
    first, parts = step * size, []
    while first < (step + 1) * size:
        number, position = divmod(first, n)
        taken = min(n - position, (step + 1) * size - first)
        parts.append(pass_order(n, seed, purpose, number)[position : position + taken])
        first += taken
    return torch.cat(parts)


@lru_cache(maxsize=4)
def pass_order(n: int, seed: int, purpose: str, number: int) -> Int64[Tensor, " n"]:
    """Return the permutation of 0 .. n - 1 in which a pass visits its images, on the CPU.

    Shuffling millions of images takes time, and a stream that works ahead may already be in the next pass, so two
    passes of each of the two streams are cached.
    """
    return torch.randperm(n, generator=generator_for(seed, purpose, number))


def _prepared_on(stream: torch.cuda.Stream, batches: Iterator[Batch]) -> Batch | None:
    with torch.cuda.stream(stream):
        return next(batches, None)
