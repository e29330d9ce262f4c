"""Tiny-ImageNet-200: 200 classes of 64 x 64 pixels, from the official zip file or its folder (Table 9).

The official test images have no labels, so the test split is the 10,000 validation images, as is usual. An archive is
checked by its MD5, an unpacked folder by its number of classes and images.
"""

from pathlib import Path

import numpy as np
import torch

from bronet.data.archive import official_folder
from bronet.data.file_set import FileSet, class_folders
from bronet.data.image_set import ImageSet
from bronet.errors import BronetError
from bronet.recipe.dataset import dataset_spec

NAME = "tiny-imagenet"
FOLDER = "tiny-imagenet-200"
ARCHIVE = f"{FOLDER}.zip"
URL = f"http://cs231n.stanford.edu/{ARCHIVE}"
MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
IMAGES = {"train": 100_000, "test": 10_000}


def load_tiny_imagenet(split: str, data_dir: Path, *, download: bool) -> ImageSet:
    """Return the images of a split, decoded; 1.2 GB of memory for the training images."""
    return provide_tiny_imagenet(split, data_dir, download=download).decoded(dataset_spec(NAME), resized=False)


def provide_tiny_imagenet(split: str, data_dir: Path, *, download: bool) -> FileSet:
    """Return the files of a split, unpacked or (if allowed) downloaded first if necessary."""
    folder = official_folder(NAME, data_dir / FOLDER, data_dir / ARCHIVE, md5=MD5, url=URL, download=download)
    files = tiny_imagenet_files(folder, split)
    if len(files) != IMAGES[split]:
        raise BronetError(f"{folder} must hold {IMAGES[split]} {split} images, got {len(files)}: unpack it again")
    return files


def tiny_imagenet_files(folder: Path, split: str) -> FileSet:
    """Return the files of a split of the official layout, labelled in the order of wnids.txt."""
    classes = tuple(_lines(folder / "wnids.txt"))
    expected = dataset_spec(NAME).classes
    if len(set(classes)) != expected:
        raise BronetError(f"{folder / 'wnids.txt'} must name {expected} classes, got {len(set(classes))}")
    if split == "train":
        return class_folders(NAME, folder / "train", expected=expected, classes=classes)
    numbers = {name: position for position, name in enumerate(classes)}
    annotations = folder / "val" / "val_annotations.txt"
    rows = [line.split("\t")[:2] for line in _lines(annotations)]
    for row in rows:
        if len(row) != 2 or row[1] not in numbers:
            raise BronetError(f"lines of {annotations} must be an image and a class of wnids.txt, got {row}")
    paths = np.array([file.encode() for file, _ in rows], dtype=bytes)
    labels = torch.tensor([numbers[name] for _, name in rows], dtype=torch.int64)
    return FileSet(NAME, folder / "val" / "images", paths, labels, classes)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BronetError(f"cannot read {path} ({error}); unpack the official archive again") from None
