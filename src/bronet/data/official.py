"""CIFAR-10/100 and Tiny-ImageNet as their authors publish them: an archive that holds one folder (Section 5, Table 9).

A record of CIFAR (Krizhevsky, 2009) is one label byte (CIFAR-100: the coarse label, then the fine one, which is used)
and 3,072 pixel bytes, channel first. Tiny-ImageNet has 200 classes of 64 x 64 pixels; its official test images have no
labels, so the test split is the 10,000 validation images, as is usual. Archives are checked by their MD5, unpacked
folders by sizes, labels and numbers of images, which do not detect a changed pixel.

Copies of CIFAR-100 differ in their order. Its test images are numbered by their content instead, in the order of the
SHA-256 of their records, so that a row of a certificate names the same image wherever the copy comes from.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bronet.data.archive import download_file, unpack_archive
from bronet.data.image_set import FileSet, ImageSet, class_folders
from bronet.errors import BronetError
from bronet.recipe.schema import dataset_spec

PIXEL_BYTES = 3 * 32 * 32
CIFAR_IMAGES = {"train": 50_000, "test": 10_000}
TINY_IMAGES = {"train": 100_000, "test": 10_000}
UNPACK_AGAIN = "unpack the official archive again"


@dataclass(frozen=True, kw_only=True)
class OfficialSet:
    """A data set as its authors publish it: an archive, at `url`, that holds one folder."""

    name: str
    url: str
    md5: str
    folder: str

    @property
    def archive(self) -> str:
        """The name of the archive."""
        return self.url.rsplit("/", 1)[-1]

    def place(self, data_dir: Path) -> Path | None:
        """Return the folder or the archive, whichever exists; their content is not checked."""
        places = (data_dir / self.folder, data_dir / self.archive)
        return next((place for place in places if place.exists()), None)

    def provide(self, data_dir: Path, *, download: bool) -> Path:
        """Return the folder, unpacked from its archive if necessary, downloaded if allowed."""
        folder, archive = data_dir / self.folder, data_dir / self.archive
        if folder.is_dir():
            return folder
        if not archive.is_file():
            if not download:
                raise BronetError(
                    f"{self.name} must be in {data_dir} as the folder {self.folder} or the archive {self.archive}, "
                    f"found neither: get {self.url}, allow --download, or name another place (--data-dir)"
                )
            download_file(self.url, archive, self.md5)
        unpack_archive(archive, folder, md5=self.md5, url=self.url)
        return folder


@dataclass(frozen=True, kw_only=True)
class CifarLayout(OfficialSet):
    """One of the two sets of CIFAR, with the required content of its files."""

    files: dict[str, tuple[str, ...]]
    label_bytes: int
    names_file: str
    classes: tuple[str, ...]
    numbered_by_content: tuple[str, ...] = ()
    """The splits whose order is not that of the files."""


FINE_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel
can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur
dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion
lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree
pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea
seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank
telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
LAYOUTS = {
    "cifar10": CifarLayout(
        name="cifar10",
        url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        md5="c32a1d4ab5d03f1284b67883e8d87530",
        folder="cifar-10-batches-bin",
        files={"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)},
        label_bytes=1,
        names_file="batches.meta.txt",
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    ),
    "cifar100": CifarLayout(
        name="cifar100",
        url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        md5="03b5dce01913d631647c71ecec9e9cb8",
        folder="cifar-100-binary",
        files={"train": ("train.bin",), "test": ("test.bin",)},
        label_bytes=2,
        names_file="fine_label_names.txt",
        classes=tuple(FINE_NAMES.split()),
        numbered_by_content=("test",),
    ),
}
TINY_IMAGENET = OfficialSet(
    name="tiny-imagenet",
    url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    md5="90528d7ca1a48142e341f4ef8d21d0de",
    folder="tiny-imagenet-200",
)


def provide_cifar(name: str, split: str, data_dir: Path, *, download: bool) -> list[Path]:
    """Return the files of a split, which have the right sizes, unpacked or (if allowed) downloaded if necessary."""
    layout = LAYOUTS[name]
    folder = layout.provide(data_dir, download=download)
    names = folder / layout.names_file
    if names.is_file() and tuple(_text(names).split()) != layout.classes:  # those of another data set
        raise BronetError(f"{names} must name the {len(layout.classes)} official classes in order: {UNPACK_AGAIN}")
    files = [folder / file for file in layout.files[split]]
    size = CIFAR_IMAGES[split] // len(files) * (layout.label_bytes + PIXEL_BYTES)
    for file in files:
        held = file.stat().st_size if file.is_file() else "no file"
        if held != size:
            raise BronetError(f"{file} must have {size} bytes, got {held}: {UNPACK_AGAIN}")
    return files


def load_cifar(name: str, split: str, files: list[Path]) -> ImageSet:
    """Return all images of a split, in the order of its files, which `provide_cifar` gives, or of their content."""
    layout, spec = LAYOUTS[name], dataset_spec(name)
    try:
        table = np.concatenate([np.fromfile(file, dtype=np.uint8) for file in files])
    except OSError as error:
        raise BronetError(f"cannot read {files[0].parent}: {error.strerror}; {UNPACK_AGAIN}") from None
    table = table.reshape(-1, layout.label_bytes + PIXEL_BYTES)
    if split in layout.numbered_by_content:
        digests = [hashlib.sha256(record.tobytes()).digest() for record in table]
        table = table[sorted(range(len(table)), key=digests.__getitem__)]
    labels = torch.from_numpy(table[:, layout.label_bytes - 1].astype(np.int64))
    images = torch.from_numpy(table[:, layout.label_bytes :].copy()).view(-1, *spec.shape)
    found = ImageSet(name, images, labels, layout.classes, spec.scale)
    counts, expected = torch.bincount(labels, minlength=spec.classes), CIFAR_IMAGES[split] // spec.classes
    worst = int((counts - expected).abs().argmax())
    if counts[worst] != expected:  # both sets are balanced
        raise BronetError(
            f"{split} images in {files[0].parent} must be {expected} per class, got {int(counts[worst])} of class "
            f"{layout.classes[worst]}: {UNPACK_AGAIN}"
        )
    return found


def tiny_imagenet(split: str, data_dir: Path, *, download: bool) -> FileSet:
    """Return the files of a split, labelled in the order of wnids.txt; the archive is provided if necessary."""
    folder, name = TINY_IMAGENET.provide(data_dir, download=download), TINY_IMAGENET.name
    classes, expected = tuple(_text(folder / "wnids.txt").splitlines()), dataset_spec(name).classes
    if len(set(classes)) != expected:
        raise BronetError(f"{folder / 'wnids.txt'} must name {expected} classes, got {len(set(classes))}")
    if split == "train":
        files = class_folders(name, folder / "train", expected=expected, classes=classes)
    else:
        annotations = folder / "val" / "val_annotations.txt"
        rows = [line.split("\t")[:2] for line in _text(annotations).splitlines()]
        for row in rows:
            if len(row) != 2 or row[1] not in classes:
                raise BronetError(f"lines of {annotations} must be an image and a class of wnids.txt, got {row}")
        paths = np.array([file.encode() for file, _ in rows], dtype=bytes)
        labels = torch.tensor([classes.index(of) for _, of in rows])
        files = FileSet(name, folder / "val" / "images", paths, labels, classes)
    if len(files) != TINY_IMAGES[split]:
        raise BronetError(f"{folder} must hold {TINY_IMAGES[split]} {split} images, got {len(files)}: unpack it again")
    return files


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BronetError(f"cannot read {path} ({error}); {UNPACK_AGAIN}") from None
