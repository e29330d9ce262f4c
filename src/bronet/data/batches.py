"""The batches of a run: stored images, mixed with generated ones if the recipe says so, augmented (App. B.5 and B.6).

An epoch is one pass over the real images; passes over the generated images are independent of it. The batch and the
augmentation of a step depend only on (seed, step), so starting at any step, in any number of processes, gives the same
images. A stream delivers the images of a plan from memory, or decodes them from files in workers, on whose number
nothing depends. RandAugment comes after cropping, so that it runs on the training device.
"""

import random
import signal
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from functools import lru_cache
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from bronet.data.augment import augment
from bronet.data.decode import decode_random, decode_whole
from bronet.data.image_set import FileSet, ImageSet
from bronet.data.randomness import BatchShare, generator_for, stable_hash
from bronet.errors import BronetError
from bronet.recipe.schema import DataRecipe, DatasetSpec, Recipe

PREFETCHED_BATCHES = 4
"""Batches that each worker prepares ahead."""


class PlannedBatch(NamedTuple):
    """The images of one batch; `epoch` counts the passes over the stream."""

    epoch: int
    chosen: Int64[Tensor, " b"]


StoredBatch = tuple[UInt8[Tensor, "b c h w"], Int64[Tensor, " b"]]
"""Stored bytes and labels of one batch, on the training device."""


@dataclass(frozen=True)
class ResidentStream:
    """Images on the training device, as one tensor; cropping and flipping them is left to the caller."""

    source: ImageSet
    cropped: ClassVar[bool] = False

    def deliver(self, plan: Iterable[PlannedBatch]) -> Iterator[StoredBatch]:
        """Yield the batches of the plan in order."""
        images, labels = self.source.images, self.source.labels
        for planned in plan:
            index = planned.chosen.to(images.device, non_blocking=True)
            yield images[index], labels[index]


@dataclass(frozen=True)
class DecodedStream(Dataset[tuple[Tensor, int] | BronetError]):
    """Files that `workers` processes (0: this one) decode, and resize, crop and flip if the recipe resizes.

    Workers get it as a data set with the keys (epoch, index). An error is returned, because a raised one would arrive
    with the worker's traceback in its message.
    """

    source: FileSet
    spec: DatasetSpec
    _: KW_ONLY
    resize: tuple[int, ...]
    flip: bool
    seed: int
    workers: int
    device: torch.device

    @property
    def cropped(self) -> bool:
        """Whether random cropping and flipping has already been done."""
        return bool(self.resize)

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, int] | BronetError:
        epoch, index = key
        path, label = self.source.path(index), int(self.source.labels[index])
        try:
            if not self.resize:
                return decode_whole(path, self.spec), label
            draw = random.Random(stable_hash(self.seed, "decode", epoch, index))  # not of the worker
            return decode_random(path, self.spec, resize=self.resize, flip=self.flip, draw=draw), label
        except BronetError as error:
            return error

    def deliver(self, plan: Iterable[PlannedBatch]) -> Iterator[StoredBatch]:
        """Yield the batches of the plan in order."""
        keys = ([(planned.epoch, index) for index in planned.chosen.tolist()] for planned in plan)
        loader: DataLoader[tuple[Tensor, int] | BronetError] = DataLoader(
            self,
            collate_fn=_stacked,
            batch_sampler=keys,  # type: ignore[arg-type]  # they are pairs, not numbers
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
            prefetch_factor=PREFETCHED_BATCHES if self.workers else None,
            worker_init_fn=_ignore_ctrl_c if self.workers else None,
            # A fork would copy the threads' locks of this process; a fresh server has none.
            multiprocessing_context="forkserver" if self.workers else None,
        )
        for batch in loader:
            if isinstance(batch, BronetError):
                raise batch
            images, labels = batch
            yield images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)


ImageStream = ResidentStream | DecodedStream


def _stacked(images: list[tuple[Tensor, int] | BronetError]) -> list[Tensor] | BronetError:
    """Return the images and the labels of a batch, or the error of the first image that has one."""
    errors = [image for image in images if isinstance(image, BronetError)]
    return errors[0] if errors else default_collate(images)


def _ignore_ctrl_c(worker: int) -> None:
    """Ctrl-C reaches every process of the terminal; the main one ends the workers when it has saved."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@dataclass(frozen=True)
class _Part:
    """The real or the generated images of all batches; a pass visits so many of them, in an order of its own."""

    stream: ImageStream
    share: BatchShare
    data: DataRecipe
    seed: int
    purpose: str
    visited: int

    def plan(self, step: int) -> PlannedBatch:
        """Return this process's share of a step's images."""
        n, size, purpose = len(self.stream.source), self.share.total, f"{self.purpose} order"
        index = endless_batch(n, size, seed=self.seed, purpose=purpose, step=step, visited=self.visited)
        return PlannedBatch(step * size // self.visited, self.share.take(index))

    def augmented(self, step: int, images: UInt8[Tensor, "b c h w"]) -> UInt8[Tensor, "b c h w"]:
        """Return the images of a step as they are learned."""
        left = replace(self.data, crop_padding=0, flip=False) if self.stream.cropped else self.data
        purpose = "augment" if self.purpose == "epoch" else f"augment {self.purpose}"
        return augment(images, generator_for(self.seed, purpose, step, device=images.device), left, share=self.share)


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
        data, batch_size = recipe.data, recipe.train.batch_size - recipe.data.synthetic_batch
        if bool(data.synthetic_batch) != (synthetic is not None):
            raise BronetError(f"data.synthetic_batch = {data.synthetic_batch} needs the generated images, too")
        self.device, self.scale, self.classes = device, data.spec().scale, real.source.classes
        self.steps_per_epoch = steps_per_epoch(len(real.source), batch_size)

        def part(stream: ImageStream, data: DataRecipe, purpose: str, size: int, visited: int) -> _Part:
            share = BatchShare.of_rank(size, rank=rank, world=world)
            return _Part(stream, share, data, recipe.train.seed, purpose, visited)

        self.parts = [part(real, data, "epoch", batch_size, self.steps_per_epoch * batch_size)]
        if synthetic is not None:
            padding, probability = data.synthetic_crop_padding, data.synthetic_randaugment_probability
            own = replace(data, crop_padding=padding, randaugment_probability=probability)
            self.parts += [part(synthetic, own, "synthetic", data.synthetic_batch, len(synthetic.source))]

    def between(self, start: int, stop: int) -> Iterator[Batch]:
        """Yield the batches of the steps `start` to `stop` - 1, counted from the beginning of the run."""
        steps = range(start, stop)
        delivered = [part.stream.deliver(map(part.plan, steps)) for part in self.parts]
        for step, *stored in zip(steps, *delivered, strict=True):
            pairs = zip(self.parts, stored, strict=True)
            pixels = torch.cat([part.augmented(step, images) for part, (images, _) in pairs])
            yield Batch(pixels.float() / self.scale, torch.cat([labels for _, labels in stored]))


def prepared_ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield the same batches; on a GPU each is prepared, on a separate stream, during the step on the previous one."""
    if device.type != "cuda":
        yield from batches
        return
    side, main = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    side.wait_stream(main)  # the images may still be on their way to the device
    while True:
        with torch.cuda.stream(side):  # the step on the previous batch is already queued
            batch = next(batches, None)
        if batch is None:
            return
        main.wait_stream(side)
        for tensor in batch:
            tensor.record_stream(main)  # made on one stream, used on the other: its memory must not be reused early
        yield batch


def steps_per_epoch(n: int, batch_size: int) -> int:
    """Return the number of full batches of an epoch, at least one."""
    if not 1 <= batch_size <= n:
        limit = "at least 1" if batch_size < 1 else f"at most the number of training images = {n}"
        raise BronetError(f"batch size must be {limit}, got {batch_size}; choose another train.batch_size")
    return n // batch_size


def endless_batch(
    n: int, size: int, *, seed: int, purpose: str, step: int, visited: int | None = None
) -> Int64[Tensor, " size"]:
    """Return the images of step `step` from a stream that visits n images pass after pass, each in its own order.

    A pass may end after `visited` images. A batch may reach from one pass into the next.
    """
    visited, first, parts = visited or n, step * size, []
    while first < (step + 1) * size:
        number, position = divmod(first, visited)
        taken = min(visited - position, (step + 1) * size - first)
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
