"""CIFAR-10 and CIFAR-100 from the official binary archives (Krizhevsky, 2009; Section 5 of the paper).

A record is one label byte (CIFAR-100: the coarse label, then the fine one, which is used) and 3,072 pixel bytes,
channel first. Sizes, labels and class counts are checked; pixels only by the checksum of the archive.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bronet.data.archive import OfficialSet
from bronet.data.image_set import ImageSet
from bronet.errors import BronetError
from bronet.recipe.dataset import dataset_spec

HOME = "https://www.cs.toronto.edu/~kriz"
PIXEL_BYTES = 3 * 32 * 32
IMAGES = {"train": 50_000, "test": 10_000}
UNPACK_AGAIN = "unpack the official archive again"


@dataclass(frozen=True, kw_only=True)
class CifarLayout(OfficialSet):
    """One of the two sets, with the required content of its files."""

    files: dict[str, tuple[str, ...]]
    label_bytes: int
    names_file: str
    classes: tuple[str, ...]


FINE_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel
can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur
dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion
lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree
pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea
seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank
telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""

LAYOUTS: dict[str, CifarLayout] = {
    "cifar10": CifarLayout(
        name="cifar10",
        home=HOME,
        folder="cifar-10-batches-bin",
        archive="cifar-10-binary.tar.gz",
        md5="c32a1d4ab5d03f1284b67883e8d87530",
        files={"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)},
        label_bytes=1,
        names_file="batches.meta.txt",
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    ),
    "cifar100": CifarLayout(
        name="cifar100",
        home=HOME,
        folder="cifar-100-binary",
        archive="cifar-100-binary.tar.gz",
        md5="03b5dce01913d631647c71ecec9e9cb8",
        files={"train": ("train.bin",), "test": ("test.bin",)},
        label_bytes=2,
        names_file="fine_label_names.txt",
        classes=tuple(FINE_NAMES.split()),
    ),
}


def load_cifar(name: str, split: str, data_dir: Path, *, download: bool) -> ImageSet:
    """Return all images of a split, in the order of the official files, provided as `provide_cifar` does."""
    layout, spec = LAYOUTS[name], dataset_spec(name)
    files = provide_cifar(name, split, data_dir, download=download)
    table = np.concatenate([_records(file, layout) for file in files])
    labels = torch.from_numpy(table[:, layout.label_bytes - 1].astype(np.int64))
    counts, expected = torch.bincount(labels, minlength=spec.classes), IMAGES[split] // spec.classes
    worst = int((counts - expected).abs().argmax())
    if counts[worst] != expected:  # both sets are balanced
        raise BronetError(
            f"{split} images in {files[0].parent} must be {expected} per class, got {int(counts[worst])} of class "
            f"{layout.classes[worst]}: {UNPACK_AGAIN}"
        )
    images = torch.from_numpy(table[:, layout.label_bytes :].copy()).view(-1, *spec.shape)
    return ImageSet(name, images, labels, layout.classes, spec.scale)


def provide_cifar(name: str, split: str, data_dir: Path, *, download: bool) -> list[Path]:
    """Return the files of a split, which have the right sizes, unpacked or (if allowed) downloaded if necessary."""
    layout = LAYOUTS[name]
    folder = layout.provide(data_dir, download=download)
    names = folder / layout.names_file
    found = tuple(names.read_text(encoding="utf-8", errors="replace").split()) if names.is_file() else layout.classes
    if found != layout.classes:  # the names are built in; a file that differs belongs to another data set
        raise BronetError(
            f"{names} must name the {len(layout.classes)} official classes in order, got {len(found)} names "
            f"that differ: {UNPACK_AGAIN}"
        )
    files = [folder / file for file in layout.files[split]]
    size = IMAGES[split] // len(files) * (layout.label_bytes + PIXEL_BYTES)
    for file in files:
        try:
            held = file.stat().st_size
        except OSError as error:
            raise BronetError(f"cannot read {file}: {error.strerror}; {UNPACK_AGAIN}") from None
        if held != size:
            raise BronetError(f"{file} must have {size} bytes, got {held}: {UNPACK_AGAIN}")
    return files


def _records(path: Path, layout: CifarLayout) -> NDArray[np.uint8]:
    """Return the records of one file, one per row; the last label byte is the (fine) label."""
    try:
        table = np.fromfile(path, dtype=np.uint8).reshape(-1, layout.label_bytes + PIXEL_BYTES)
    except OSError as error:
        raise BronetError(f"cannot read {path}: {error.strerror}; {UNPACK_AGAIN}") from None
    largest = int(table[:, layout.label_bytes - 1].max())
    if largest >= len(layout.classes):
        raise BronetError(f"labels in {path} must be less than {len(layout.classes)}, got {largest}: {UNPACK_AGAIN}")
    return table
