"""Labelled image files that are decoded when they are needed, for data sets too large to keep decoded (ImageNet).

This is the counterpart of `ImageSet`, with paths instead of pixels. A folder of class folders is the layout of
ImageNet, of EDM2's generated images and of most data sets of one's own.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from bronet.data.decode import decode_centre, decode_whole
from bronet.data.image_set import ImageSet
from bronet.errors import BronetError
from bronet.recipe.dataset import DatasetSpec

SUFFIXES = frozenset({".jpeg", ".jpg", ".png", ".webp", ".bmp", ".ppm", ".tif", ".tiff"})


@dataclass(frozen=True, eq=False)
class FileSet:
    """Image files below a folder, with labels. Paths are one array of bytes, so that workers get millions cheaply."""

    name: str
    root: Path
    paths: NDArray[Any]
    labels: Int64[Tensor, " n"]
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def path(self, index: int) -> Path:
        """Return the path of image `index`."""
        return self.root / os.fsdecode(self.paths[index])

    def subset(self, index: Int64[Tensor, " b"]) -> "FileSet":
        """Return the files at `index`, in that order, with all classes kept."""
        return replace(self, paths=self.paths[index.numpy()], labels=self.labels[index])

    def decoded(self, spec: DatasetSpec, *, resized: bool) -> ImageSet:
        """Return all images decoded: resized and cropped at the centre to the model's size if `resized`."""
        decode = decode_centre if resized else decode_whole
        images = torch.empty(len(self), *spec.shape, dtype=torch.uint8)
        for position in range(len(self)):
            images[position] = decode(self.path(position), spec)
        return ImageSet(self.name, images, self.labels, self.classes, spec.scale)


def class_names_below(root: Path) -> tuple[str, ...]:
    """Return the names of the class folders, sorted."""
    return tuple(sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith(".")))


def class_folders(name: str, root: Path, *, expected: int, classes: Sequence[str] = ()) -> FileSet:
    """Return the image files of a folder with one folder per class, in a fixed order.

    There must be `expected` classes. The label of a folder is the position of its name in `classes` (by default the
    sorted names of the folders). Folders with other names must be numbered from 0, as those of generated images are.
    """
    if not root.is_dir():
        raise BronetError(f"{name} must be in {root} as one folder per class, but there is no such folder")
    folders = list(class_names_below(root))
    if len(folders) != expected:
        raise BronetError(f"{root} must hold {expected} class folders, got {len(folders)}: is it whole?")
    labels_of = _labels(folders, tuple(classes) or tuple(folders), root)
    paths: list[bytes] = []
    labels: list[int] = []
    for folder in folders:
        found = _images_below(root / folder)
        if not found:
            raise BronetError(f"class folder {root / folder} must hold images, got none: is the data set whole?")
        paths += [os.fsencode(f"{folder}/{file}") for file in found]
        labels += [labels_of[folder]] * len(found)
    names = tuple(classes) or tuple(folders)
    return FileSet(name, root, np.array(paths, dtype=bytes), torch.tensor(labels, dtype=torch.int64), names)


def _labels(folders: list[str], classes: tuple[str, ...], root: Path) -> dict[str, int]:
    if set(folders) == set(classes):
        return {name: position for position, name in enumerate(classes)}
    numbers = {folder: int(folder) for folder in folders if folder.isdecimal()}
    if sorted(numbers.values()) == list(range(len(classes))):
        return numbers
    strange = sorted(set(folders) - set(classes))[0]
    raise BronetError(f"class folders in {root} must be named like the classes or numbered from 0, got {strange}")


def _images_below(folder: Path) -> list[str]:
    """Return the sorted images of a class, including those in folders below it, as in Tiny-ImageNet."""
    found: list[str] = []
    for entry in os.scandir(folder):
        if entry.is_dir():
            found += [f"{entry.name}/{file}" for file in _images_below(Path(entry.path))]
        elif Path(entry.name).suffix.lower() in SUFFIXES:
            found.append(entry.name)
    return sorted(found)
