"""Images from wherever a user has them, as batches: tensors, arrays, PyTorch data sets and loaders.

Floating-point pixels are taken as they are, bytes are divided by 255 (an `ImageSet` by its scale). Nothing is checked
about the range: whoever uses the pixels knows what it needs.
"""

from collections.abc import Iterator, Mapping
from functools import singledispatch
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bronet.data.columns import IMAGE_NAMES, image_and_label
from bronet.data.image_set import ImageSet
from bronet.errors import BronetError
from bronet.recipe.schema import BYTE_SCALE

AT_ONCE = 256
TO_TENSORS = "for example by torchvision's ToTensor"

Batches = Iterator[tuple[Tensor, Tensor | None]]


@singledispatch
def batches_of(images: Any, *, batch_size: int = AT_ONCE) -> Batches:
    """Yield pixels and labels batch by batch; labels are None where the source has none.

    `images` is a tensor or an array of images, a data set whose items are an image, or an image and its label, or a
    loader (any iterable) of batches of either kind; items may be tuples or dictionaries. A loader keeps its batches.
    """
    try:
        batches = iter(images)
    except TypeError:
        got = type(images).__name__
        raise BronetError(f"images must be a tensor, an array, a data set or a loader, got {got}") from None
    for batch in batches:
        pixels, labels = _parts(batch)
        if not isinstance(pixels, (Tensor, np.ndarray)):
            got = f"{type(pixels).__name__}; a data set must give tensors, {TO_TENSORS}"
            raise BronetError(f"images of a batch must be a tensor, got {got}")
        yield _floating(torch.as_tensor(pixels)), None if labels is None else torch.as_tensor(labels)


@batches_of.register(Tensor)
@batches_of.register(np.ndarray)
def _(images: Tensor | np.ndarray, *, batch_size: int = AT_ONCE) -> Batches:
    for part in torch.as_tensor(images).split(batch_size):
        yield _floating(part), None


@batches_of.register
def _(images: ImageSet, *, batch_size: int = AT_ONCE) -> Batches:
    for index in torch.arange(len(images)).split(batch_size):
        yield images.pixels(index, torch.float64), images.subset(index).labels


@batches_of.register
def _(images: Dataset, *, batch_size: int = AT_ONCE) -> Batches:  # type: ignore[type-arg]
    try:
        yield from batches_of(DataLoader(images, batch_size=batch_size))
    except TypeError as error:  # of images that torch cannot stack, such as Pillow's
        reason = str(error).partition(";")[0]
        raise BronetError(f"items of a data set must be tensors, {TO_TENSORS} ({reason})") from None


def _parts(batch: Any) -> tuple[Any, Any]:
    """Return images and labels of a batch, None where there are no labels."""
    if isinstance(batch, Mapping):
        image, label = image_and_label(batch)
        if not image:
            raise BronetError(f"a batch must have one of the keys {', '.join(IMAGE_NAMES)}, got {', '.join(batch)}")
        return batch[image], batch[label] if label else None
    if isinstance(batch, (tuple, list)):
        return batch[0], batch[1] if len(batch) > 1 else None
    return batch, None


def _floating(pixels: Tensor) -> Tensor:
    return pixels if pixels.is_floating_point() else pixels.double() / BYTE_SCALE
