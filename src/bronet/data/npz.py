"""Generated images in an .npz file: arrays `image` (n, h, w, c) of bytes and `label` (n,), as in EDM's sets for CIFAR
(Tables 2 and 3).

Images are put into the order of the network in place, so that millions of them are never in memory twice. Python
objects, which could run code when read, are refused.
"""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from bronet.data.image_set import ImageSet
from bronet.errors import BronetError
from bronet.recipe.schema import DatasetSpec

IMAGE_KEYS, LABEL_KEYS = ("image", "images"), ("label", "labels")
CHUNK_IMAGES = 4096


def load_npz(path: Path, spec: DatasetSpec, classes: tuple[str, ...]) -> ImageSet:
    """Return the images and labels of the file; shapes, types and labels are checked."""
    if not path.is_file():
        raise BronetError(f"generated images must be in {path}, but there is no such file; get or make them first")
    try:
        if not zipfile.is_zipfile(path):
            raise zipfile.BadZipFile("it is no .npz file")
        with np.load(path, allow_pickle=False) as arrays:
            pixels, numbers = _array(arrays, IMAGE_KEYS, path), _array(arrays, LABEL_KEYS, path)
    except BronetError:
        raise
    except (ValueError, TypeError, OverflowError, MemoryError) as error:
        raise BronetError(f"arrays in {path} must be plain .npy arrays ({error})") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError) as error:
        raise BronetError(f"cannot read {path} ({error}): it is damaged or cut short, get it again") from None
    wanted = (spec.height, spec.width, spec.channels)
    if pixels.shape[1:] != wanted or pixels.dtype != np.uint8:
        got = f"{pixels.dtype} of shape {pixels.shape}"
        raise BronetError(f"images in {path} must be uint8 of shape (n, {wanted}), got {got}")
    if numbers.shape != pixels.shape[:1] or numbers.dtype.kind not in "iu":
        got = f"{numbers.dtype} of shape {numbers.shape}"
        raise BronetError(f"labels in {path} must be {len(pixels)} whole numbers, got {got}")
    stored = torch.from_numpy(np.ascontiguousarray(pixels))
    images = stored.view(-1, *spec.shape)  # the same memory, in which every image keeps its place
    for start in range(0, len(images), CHUNK_IMAGES):
        chunk = stored[start : start + CHUNK_IMAGES].permute(0, 3, 1, 2)
        images[start : start + CHUNK_IMAGES] = chunk.clone()
    return ImageSet(path.stem, images, torch.from_numpy(numbers.astype(np.int64)), classes, spec.scale)


def _array(arrays: NpzFile, keys: tuple[str, ...], path: Path) -> NDArray[Any]:
    for key in keys:
        if key in arrays:
            return np.asarray(arrays[key])
    raise BronetError(f"{path} must hold an array named {keys[0]!r}, got {', '.join(arrays) or 'nothing'}")
