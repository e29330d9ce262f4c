"""CIFAR-10 and CIFAR-100 from the official binary archives (Krizhevsky, 2009; Section 5 of the paper).

A record is one label byte (CIFAR-100: the coarse label, then the fine one, which is used) and 3,072 pixel bytes,
channel first. Sizes, labels and class counts are checked; pixels only by the checksum of the archive.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from bronet.data.archive import official_folder
from bronet.data.image_set import ImageSet
from bronet.errors import BronetError
from bronet.recipe.dataset import dataset_spec

HOME = "https://www.cs.toronto.edu/~kriz"
"""The authors' page, which also publishes the checksums."""
PIXEL_BYTES = 3 * 32 * 32


@dataclass(frozen=True)
class CifarLayout:
    """Where one of the two sets lies, and what its files must hold."""

    folder: str
    archive: str
    md5: str
    files: dict[str, tuple[str, ...]]
    label_bytes: int
    names_file: str
    classes: tuple[str, ...]

    @property
    def record_bytes(self) -> int:
        """Bytes of one image with its labels."""
        return self.label_bytes + PIXEL_BYTES

    @property
    def url(self) -> str:
        """Address of the official archive."""
        return f"{HOME}/{self.archive}"


UNPACK_AGAIN = "unpack the official archive again"
IMAGES = {"train": 50_000, "test": 10_000}

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
        folder="cifar-10-batches-bin",
        archive="cifar-10-binary.tar.gz",
        md5="c32a1d4ab5d03f1284b67883e8d87530",
        files={"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)},
        label_bytes=1,
        names_file="batches.meta.txt",
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    ),
    "cifar100": CifarLayout(
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
    """Return all images of a split in the order of the official files, unpacked or downloaded first if necessary."""
    layout, spec = LAYOUTS[name], dataset_spec(name)
    folder = data_dir / layout.folder
    files = provide_cifar(name, split, data_dir, download=download)
    table = np.concatenate([_read(file, layout.record_bytes, layout) for file in files])
    labels = torch.from_numpy(table[:, layout.label_bytes - 1].astype(np.int64))
    _check_counts(torch.bincount(labels, minlength=spec.classes), folder, layout, split)
    images = torch.from_numpy(table[:, layout.label_bytes :].copy()).view(-1, *spec.shape)
    return ImageSet(name, images, labels, layout.classes, spec.scale)


def provide_cifar(name: str, split: str, data_dir: Path, *, download: bool) -> list[Path]:
    """Return the files of a split, of the right sizes, unpacked or (if allowed) downloaded first if necessary."""
    layout = LAYOUTS[name]
    folder = official_folder(
        name, data_dir / layout.folder, data_dir / layout.archive, md5=layout.md5, url=layout.url, download=download
    )
    _check_names(folder / layout.names_file, layout)
    files = [folder / file for file in layout.files[split]]
    size = IMAGES[split] // len(files) * layout.record_bytes
    for file in files:
        try:
            found = file.stat().st_size
        except OSError as error:
            raise BronetError(f"cannot read {file}: {error.strerror}; {UNPACK_AGAIN}") from None
        if found != size:
            raise BronetError(f"{file} must have {size} bytes, got {found}: {UNPACK_AGAIN}")
    return files


def _read(path: Path, width: int, layout: CifarLayout) -> NDArray[np.uint8]:
    """Return the records of one file, a row each; the last label byte is the (fine) label."""
    try:
        content = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise BronetError(f"cannot read {path}: {error.strerror}; {UNPACK_AGAIN}") from None
    table = content.reshape(-1, width)
    largest = int(table[:, layout.label_bytes - 1].max())
    if largest >= len(layout.classes):
        raise BronetError(f"labels in {path} must be less than {len(layout.classes)}, got {largest}: {UNPACK_AGAIN}")
    return table


def _check_names(path: Path, layout: CifarLayout) -> None:
    """Raise if a file of names differs from the built-in names: it belongs to another data set."""
    if not path.is_file():
        return
    found = tuple(path.read_text(encoding="utf-8", errors="replace").split())
    if found != layout.classes:
        raise BronetError(
            f"{path} must name the {len(layout.classes)} official classes in order, got {len(found)} names "
            f"that differ: {UNPACK_AGAIN}"
        )


def _check_counts(counts: Int64[Tensor, " k"], folder: Path, layout: CifarLayout, split: str) -> None:
    """Raise unless every class has the same number of images, as in both data sets."""
    expected = IMAGES[split] // len(layout.classes)
    worst = int((counts - expected).abs().argmax())
    if counts[worst] != expected:
        raise BronetError(
            f"{split} images in {folder} must be {expected} per class, got {int(counts[worst])} of class "
            f"{layout.classes[worst]}: {UNPACK_AGAIN}"
        )
