"""Generated images in an .npz file: arrays `image` (n, h, w, c) of bytes and `label` (n,), as in EDM's sets for CIFAR
(Tables 2 and 3).

Pieces are read directly into the order of the network, so that millions of images are never in memory twice. Python
objects, which could run code when read, are refused.
"""

import math
import zipfile
import zlib
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from bronet.data.image_set import ImageSet
from bronet.errors import BronetError
from bronet.recipe.dataset import DatasetSpec

IMAGE_KEYS, LABEL_KEYS = ("image", "images"), ("label", "labels")
CHUNK_IMAGES = 4096


@runtime_checkable
class Readable(Protocol):
    """An open binary file."""

    def read(self, size: int = -1, /) -> bytes:
        """Return at most `size` bytes."""


def load_npz(path: Path, spec: DatasetSpec, classes: tuple[str, ...]) -> ImageSet:
    """Return the images and labels of the file; shapes, types and labels are checked."""
    if not path.is_file():
        raise BronetError(f"generated images must be in {path}, but there is no such file; get or make them first")
    try:
        with zipfile.ZipFile(path) as archive:
            images = _read_images(archive, path, spec)
            labels = _read_labels(archive, path, len(images))
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError) as error:
        raise BronetError(f"cannot read {path} ({error}): it is damaged or cut short, get it again") from None
    return ImageSet(path.stem, images, labels, classes, spec.scale)


def _read_images(archive: zipfile.ZipFile, path: Path, spec: DatasetSpec) -> Tensor:
    member = _member(archive, path, IMAGE_KEYS)
    with archive.open(member) as file:
        shape, dtype = _header(file, path, archive.getinfo(member).file_size)
        wanted = (spec.height, spec.width, spec.channels)
        if shape[1:] != wanted or dtype != np.uint8:
            raise BronetError(f"images in {path} must be uint8 of shape (n, {wanted}), got {dtype} of shape {shape}")
        images = torch.empty(shape[0], *spec.shape, dtype=torch.uint8)
        for start in range(0, shape[0], CHUNK_IMAGES):
            count = min(CHUNK_IMAGES, shape[0] - start)
            chunk = _read_exactly(file, path, (count, *wanted), np.dtype(np.uint8))
            images[start : start + count] = torch.from_numpy(chunk).permute(0, 3, 1, 2)
    return images


def _read_labels(archive: zipfile.ZipFile, path: Path, count: int) -> Tensor:
    member = _member(archive, path, LABEL_KEYS)
    with archive.open(member) as file:
        shape, dtype = _header(file, path, archive.getinfo(member).file_size)
        if shape != (count,) or dtype.kind not in "iu":
            raise BronetError(f"labels in {path} must be {count} whole numbers, got {dtype} of shape {shape}")
        return torch.from_numpy(_read_exactly(file, path, shape, dtype).astype(np.int64))


def _member(archive: zipfile.ZipFile, path: Path, keys: tuple[str, ...]) -> str:
    names = archive.namelist()
    for key in keys:
        if f"{key}.npy" in names:
            return f"{key}.npy"
    raise BronetError(f"{path} must hold an array named {keys[0]!r}, got {', '.join(names) or 'nothing'}")


def _header(file: Readable, path: Path, held: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and type of an array, which must hold plain numbers in C order."""
    try:
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(file)]
        shape, fortran_order, dtype = read(file)
    except (ValueError, KeyError) as error:
        raise BronetError(f"arrays in {path} must be plain .npy arrays ({error})") from None
    if fortran_order or dtype.hasobject:
        raise BronetError(f"arrays in {path} must be plain numbers in C order, got {dtype}")
    if not all(type(side) is int and side >= 0 for side in shape) or math.prod(shape) * dtype.itemsize > held:
        raise BronetError(f"arrays in {path} must be as large as their shape says, got {shape} in {held} bytes")
    return shape, dtype


def _read_exactly(file: Readable, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    size = int(np.prod(shape)) * dtype.itemsize
    content = bytearray(file.read(size))
    if len(content) != size:
        raise BronetError(f"{path} is cut short: {size} bytes expected, {len(content)} left; get it again")
    return np.frombuffer(content, dtype=dtype).reshape(shape)
