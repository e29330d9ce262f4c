"""Labelled images: one uint8 tensor, or files that are decoded when they are needed (ImageNet).

Pixels become floats in [0, 1] only per batch, so that a whole data set fits on the training device. Radii of the paper
are in that pixel space. The stored values are not copied, so they must not be written to. A folder of class folders is
the layout of ImageNet, of EDM2's generated images and of most data sets of one's own.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from bronet.data.decode import decode_centre, decode_whole
from bronet.data.randomness import stable_hash
from bronet.errors import BronetError
from bronet.recipe.schema import DatasetSpec

SUFFIXES = frozenset({".jpeg", ".jpg", ".png", ".webp", ".bmp", ".ppm", ".tif", ".tiff"})


@dataclass(frozen=True, eq=False)
class ImageSet(Dataset[tuple[Tensor, int]]):
    """Images with labels: n >= 1, every label names a class, every stored value lies in 0 .. scale.

    The value of a pixel is its stored byte divided by `scale`. As a data set of torch it gives one image in [0, 1] and
    its label at a time. `files` are the names of the files that the images come from, if they come from files.
    """

    name: str
    images: UInt8[Tensor, "n c h w"]
    labels: Int64[Tensor, " n"]
    classes: tuple[str, ...]
    scale: int
    files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        images, labels, n = self.images, self.labels, len(self.images)
        if images.ndim != 4 or images.dtype != torch.uint8 or images.numel() == 0:
            got = f"{images.dtype} of shape {tuple(images.shape)}"
            raise BronetError(f"images of {self.name} must be uint8 of shape (n, c, h, w) and not be empty, got {got}")
        if labels.shape != (n,) or labels.dtype != torch.int64:
            got = f"{labels.dtype} of shape {tuple(labels.shape)}"
            raise BronetError(f"labels of {self.name} must be int64 of shape ({n},), got {got}")
        for label in (int(labels.min()), int(labels.max())):
            if not 0 <= label < len(self.classes):
                raise BronetError(f"labels of {self.name} must satisfy 0 <= label < {len(self.classes)}, got {label}")
        if (brightest := int(images.max())) > self.scale:
            raise BronetError(f"pixels of {self.name} must be at most scale = {self.scale}, got {brightest}")

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Float[Tensor, "c h w"], int]:
        return self.images[index] / self.scale, int(self.labels[index])

    def __repr__(self) -> str:
        sides = " x ".join(map(str, self.images.shape[1:]))
        return f"ImageSet({self.name}: {len(self):,} images of {sides}, {len(self.classes)} classes)"

    def to(self, device: torch.device | str) -> "ImageSet":
        """Return the same images on `device`."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def pixels(self, index: Int64[Tensor, " b"], dtype: torch.dtype = torch.float32) -> Float[Tensor, "b c h w"]:
        """Return the images at `index` as floats in [0, 1]: byte / scale, rounded once, in `dtype`."""
        return self.images[self._local(index)].to(dtype) / self.scale

    def subset(self, index: Int64[Tensor, " b"]) -> "ImageSet":
        """Return the images at `index`, in that order, with all classes kept."""
        local, files = self._local(index), self.files
        kept = tuple(files[i] for i in index.tolist()) if files else ()
        return replace(self, images=self.images[local], labels=self.labels[local], files=kept)

    def _local(self, index: Int64[Tensor, " b"]) -> Int64[Tensor, " b"]:
        return index.to(self.images.device, non_blocking=True)


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
        files = tuple(os.fsdecode(path) for path in self.paths)
        return ImageSet(self.name, images, self.labels, self.classes, spec.scale, files)


def stratified_split(
    labels: Int64[Tensor, " n"], held_out: int, seed: int
) -> tuple[Int64[Tensor, " kept"], Int64[Tensor, " held"]]:
    """Return two increasing index tensors on the CPU, (kept, held), that partition 0 .. n - 1.

    Exactly `held_out` images are held; a class of m images gives m * held_out / n of them, rounded up or down. Images
    are ranked by a hash, not by a random number generator, so the split is the same in every version of torch.
    """
    n = len(labels)
    if not 1 <= held_out < n:
        raise BronetError(f"held-out images must satisfy 1 <= held_out < n = {n}, got {held_out}")
    members: dict[int, list[int]] = {}
    for position, label in enumerate(labels.tolist()):
        members.setdefault(label, []).append(position)
    shares = {label: len(own) * held_out // n for label, own in members.items()}
    by_remainder = sorted(members, key=lambda label: (-(len(members[label]) * held_out % n), label))
    for label in by_remainder[: held_out - sum(shares.values())]:
        shares[label] += 1
    held = torch.zeros(n, dtype=torch.bool)
    for label, share in shares.items():
        held[sorted(members[label], key=lambda position: stable_hash(seed, "split", position))[:share]] = True
    return (~held).nonzero().flatten(), held.nonzero().flatten()


def class_names_below(root: Path) -> tuple[str, ...]:
    """Return the names of the class folders, sorted; none where there is no such folder."""
    entries = os.scandir(root) if root.is_dir() else ()
    return tuple(sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")))


def class_folders(name: str, root: Path, *, expected: int, classes: Sequence[str] = ()) -> FileSet:
    """Return the image files of a folder with one folder per class, in a fixed order.

    There must be `expected` classes. The label of a folder is the position of its name in `classes` (by default the
    sorted names of the folders). Folders with other names must be numbered from 0, as those of generated images are.
    """
    if not root.is_dir():
        raise BronetError(f"{name} must be in {root} as one folder per class, but there is no such folder")
    folders = class_names_below(root)
    if len(folders) != expected:
        raise BronetError(f"{root} must hold {expected} class folders, got {len(folders)}: is it whole?")
    names = tuple(classes) or folders
    labels_of = {name: position for position, name in enumerate(names)}
    strange = sorted(set(folders) - set(names))
    if strange or len(folders) < len(names):
        labels_of = {folder: int(folder) for folder in folders if folder.isdecimal()}
        if sorted(labels_of.values()) != list(range(len(names))):
            got = (strange or folders)[0]
            raise BronetError(f"class folders in {root} must be named like the classes or numbered from 0, got {got}")
    paths, labels = list[bytes](), list[int]()
    for folder in folders:
        found = _images_below(root / folder)
        if not found:
            raise BronetError(f"class folder {root / folder} must hold images, got none: is the data set whole?")
        paths += [os.fsencode(f"{folder}/{file}") for file in found]
        labels += [labels_of[folder]] * len(found)
    return FileSet(name, root, np.array(paths, dtype=bytes), torch.tensor(labels), names)


def _images_below(folder: Path) -> list[str]:
    """Return the sorted images of a class, including those in folders below it, as in Tiny-ImageNet."""
    found: list[str] = []
    for entry in os.scandir(folder):
        if entry.is_dir():
            found += [f"{entry.name}/{file}" for file in _images_below(Path(entry.path))]
        elif Path(entry.name).suffix.lower() in SUFFIXES:
            found.append(entry.name)
    return sorted(found)
