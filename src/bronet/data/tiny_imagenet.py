"""Tiny-ImageNet-200: 200 classes of 64 x 64 pixels, from the official zip file or its folder (Table 9).

The official test images have no labels, so the test split is the 10,000 validation images, as is usual. An archive is
checked by its MD5, an unpacked folder by its number of classes and images.
"""

from pathlib import Path

import numpy as np
import torch

from bronet.data.archive import OfficialSet
from bronet.data.image_set import FileSet, class_folders
from bronet.errors import BronetError
from bronet.recipe.dataset import dataset_spec

NAME = "tiny-imagenet"
IMAGES = {"train": 100_000, "test": 10_000}
OFFICIAL = OfficialSet(
    name=NAME,
    home="http://cs231n.stanford.edu",
    archive="tiny-imagenet-200.zip",
    md5="90528d7ca1a48142e341f4ef8d21d0de",
    folder="tiny-imagenet-200",
)


def tiny_imagenet(split: str, data_dir: Path, *, download: bool) -> FileSet:
    """Return the files of a split, labelled in the order of wnids.txt; the archive is provided if necessary."""
    folder = OFFICIAL.provide(data_dir, download=download)
    classes, expected = tuple(_lines(folder / "wnids.txt")), dataset_spec(NAME).classes
    if len(set(classes)) != expected:
        raise BronetError(f"{folder / 'wnids.txt'} must name {expected} classes, got {len(set(classes))}")
    if split == "train":
        files = class_folders(NAME, folder / "train", expected=expected, classes=classes)
    else:
        files = _annotated(folder / "val", classes)
    if len(files) != IMAGES[split]:
        raise BronetError(f"{folder} must hold {IMAGES[split]} {split} images, got {len(files)}: unpack it again")
    return files


def _annotated(folder: Path, classes: tuple[str, ...]) -> FileSet:
    """Return the images of a folder with a table of their classes."""
    numbers = {name: position for position, name in enumerate(classes)}
    annotations = folder / "val_annotations.txt"
    rows = [line.split("\t")[:2] for line in _lines(annotations)]
    for row in rows:
        if len(row) != 2 or row[1] not in numbers:
            raise BronetError(f"lines of {annotations} must be an image and a class of wnids.txt, got {row}")
    paths = np.array([file.encode() for file, _ in rows], dtype=bytes)
    labels = torch.tensor([numbers[name] for _, name in rows], dtype=torch.int64)
    return FileSet(NAME, folder / "images", paths, labels, classes)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BronetError(f"cannot read {path} ({error}); unpack the official archive again") from None
