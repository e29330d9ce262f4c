"""Streams of stored images for training, from memory on the training device or decoded from files by workers.

A stream follows a plan of batches and may work ahead. What it delivers depends on the plan only, not on the number of
workers.
"""

import random
import signal
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from bronet.data.decode import decode_random, decode_whole
from bronet.data.image_set import FileSet, ImageSet, stable_hash
from bronet.errors import BronetError
from bronet.recipe.schema import DatasetSpec

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

    images: ImageSet
    cropped: ClassVar[bool] = False

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of their labels."""
        return self.images.classes

    def __len__(self) -> int:
        return len(self.images)

    def deliver(self, plan: Iterable[PlannedBatch]) -> Iterator[StoredBatch]:
        """Yield the batches of the plan in order."""
        for planned in plan:
            index = planned.chosen.to(self.images.images.device, non_blocking=True)
            yield self.images.images[index], self.images.labels[index]


@dataclass(frozen=True)
class DecodedStream(Dataset[tuple[Tensor, int] | BronetError]):
    """Files that `workers` processes (0: this one) decode, resize, crop and flip.

    Workers get it as a data set with the keys (epoch, index). An error is returned, because a raised one would arrive
    with the worker's traceback in its message.
    """

    files: FileSet
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

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of their labels."""
        return self.files.classes

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, int] | BronetError:
        epoch, index = key
        path, label = self.files.path(index), int(self.files.labels[index])
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
