"""From a data recipe to images: where each data set is in the data folder, and how it is read.

Known sets have their official layouts. Any other name is a folder of one's own, with `train` and `test` (or `val`) as
folders of class folders or as parquet files. Nothing is downloaded unless that is allowed.

Two sets are in the package. The quick start and the tests use 1,797 handwritten digits (8 x 8 pixels, UCI, CC BY 4.0);
training and test images come from the same 13 writers. The sample of CIFAR-10 lets one try a trained network: the first
50 test images of each class, in test order, as one lossless strip of pixels and a table of their test indices and
labels, made by `scripts/make_cifar10_sample.py`. DIGITS-ATTRIBUTION.txt and CIFAR10-ATTRIBUTION.txt name the authors.
"""

import io
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from PIL import Image
from torch import Tensor

from bronet.data.columns import load_npz, load_parquet, parquet_files
from bronet.data.decode import image_shape
from bronet.data.image_set import FileSet, ImageSet, class_folders, class_names_below, stratified_split
from bronet.data.official import LAYOUTS, TINY_IMAGENET, load_cifar, provide_cifar, tiny_imagenet
from bronet.errors import BronetError
from bronet.recipe.schema import DATASETS, SPLITS, DataRecipe, DatasetSpec, dataset_spec

DIGITS, IMAGENET = "digits", "imagenet"
IMAGENET_SIDES = (224, 288)
DATA_DIR_VARIABLE = "BRONET_DATA"
DEFAULT_DATA_DIR = "datasets"
OTHER_NAMES = {"train": ("train",), "test": ("test", "val", "validation")}
"""The names that folders and files of a split may have."""
SPLIT_FOLDERS = [name for names in OTHER_NAMES.values() for name in names]

TEST_DIGITS = 500
SPLIT_SEED = 0
"""Of the digits. Never change this: results for another split cannot be compared."""
SAMPLED = "cifar10"
"""The one data set with an embedded sample."""
IMAGES_FILE, ROWS_FILE = "cifar10-sample.png", "cifar10-sample.csv"


def data_folder(data_dir: Path | str | None) -> Path:
    """Return the folder of the data sets: the one given, or else the value of BRONET_DATA, or else `datasets`."""
    return Path(data_dir or os.environ.get(DATA_DIR_VARIABLE) or DEFAULT_DATA_DIR)


def load_dataset(name: str, split: str, *, data_dir: Path | str | None = None, download: bool = False) -> ImageSet:
    """Return the whole "train" or "test" split of a known data set, on the CPU, decoded and checked.

    "sample" is the 500 test images of CIFAR-10 that the package holds; no other data set has one.
    """
    return load_images(_known(name), split, data_dir=data_dir, download=download)


def _known(name: str) -> DataRecipe:
    """Return the description of a data set without augmentation; an unknown name is refused."""
    return DataRecipe(name=name, resize=IMAGENET_SIDES if name == IMAGENET else ())


def folder(path: Path | str, *, size: tuple[int, int] | None = None) -> ImageSet:
    """Return the images of a folder with one folder per class; what else is to be known is read from the images.

    The classes are the names of the folders, sorted. Images of several sizes need `size` = (height, width): they are
    resized and cropped at the centre. They are grey if all files are.
    """
    files, spec = _described(Path(path), size)
    return files.decoded(spec, resized=size is not None)


def recipe_for(dataset: str | Path | DataRecipe) -> tuple[DataRecipe, tuple[str, ...]]:
    """Return the description of a data set, and the names of its classes where they are those of folders.

    That is a known data set, or a folder with train and test (or val) below it, whose images say the rest.
    """
    if isinstance(dataset, DataRecipe):
        training = data_folder(None) / dataset.name / "train"
        return dataset, () if dataset.name in DATASETS else class_names_below(training)
    root = Path(dataset).resolve()
    if dataset in DATASETS or not root.is_dir():
        return _known(str(dataset)), ()
    split = next((root / name for name in SPLIT_FOLDERS if (root / name).is_dir()), root)
    files, spec = _described(split, None)
    if split == root:
        raise BronetError(f"{root} must hold train and test (or val), each with a folder per class, found only classes")
    channels, height, width = spec.shape
    recipe = DataRecipe(name=str(root), channels=channels, height=height, width=width, classes=spec.classes)
    return recipe, files.classes


def _described(root: Path, size: tuple[int, int] | None) -> tuple[FileSet, DatasetSpec]:
    """Return the images of a folder of class folders, and what they say of themselves."""
    names = class_names_below(root)
    if set(names) <= set(SPLIT_FOLDERS):
        found = ", ".join(names) or "none"
        raise BronetError(f"{root} must hold one folder per class, found {found}; give the folder of one split")
    files = class_folders(root.name, root, expected=len(names))
    shapes = sorted({image_shape(files.path(index)) for index in range(len(files))})
    sizes = sorted({shape[1:] for shape in shapes})
    if size is None and len(sizes) > 1:
        got = " and ".join(f"{height} x {width}" for height, width in (sizes[0], sizes[-1]))
        raise BronetError(f"images in {root} must have one size, got {got}; give size=(height, width)")
    return files, DatasetSpec(root.name, shapes[-1][0], *(size or sizes[0]), len(names))


def load_images(
    data: DataRecipe,
    split: str,
    *,
    data_dir: Path | str | None = None,
    download: bool = False,
    limit: int | None = None,
    classes: Sequence[str] = (),
) -> ImageSet:
    """Return a split for evaluation, decoded in memory: all images, or the first `limit`.

    Images larger than the model's are resized and cropped at the centre if the recipe has a range for resizing.
    `classes` are the names that a network learned, in the order of their labels, which one's own class folders must
    have. By default they are the names of the training folders, if those exist.
    """
    found = open_images(data, split, data_dir=data_dir, download=download, classes=classes)
    if limit is not None:
        if limit < 1:
            raise BronetError(f"limit must be at least 1 image, got {limit}")
        found = found.subset(torch.arange(min(limit, len(found))))
    return found.decoded(data.spec(), resized=bool(data.resize)) if isinstance(found, FileSet) else found


def open_images(
    data: DataRecipe,
    split: str,
    *,
    data_dir: Path | str | None = None,
    download: bool = False,
    classes: Sequence[str] = (),
) -> ImageSet | FileSet:
    """Return a split in memory, or as files where images must be resized first (ImageNet)."""
    found = _found(data, split, data_folder(data_dir), download=download, classes=tuple(classes))
    if found is None:
        return load_sample(data.name) if split == "sample" else load_digits(split)
    if isinstance(found, FileSet):
        is_kept = data.name == IMAGENET or (data.resize and data.name != TINY_IMAGENET.name)
        return found if is_kept else found.decoded(data.spec(), resized=False)
    if data.name in LAYOUTS:
        return load_cifar(data.name, split, found)
    return load_parquet(found, data.name, data.spec(), resized=bool(data.resize))


def provide_images(data: DataRecipe, split: str, *, data_dir: Path | str | None = None, download: bool = False) -> None:
    """Raise unless a split exists, after unpacking it, or downloading it if that is allowed.

    No image is read, so damage inside a file is found only when it is loaded.
    """
    _found(data, split, data_folder(data_dir), download=download, classes=())


def _found(
    data: DataRecipe, split: str, folder: Path, *, download: bool, classes: tuple[str, ...]
) -> FileSet | list[Path] | None:
    """Return the files of a split's images, or those that hold many; None if they are in the package."""
    if split not in SPLITS:
        raise BronetError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    if split == "sample" or data.name == DIGITS:
        return None
    if data.name in LAYOUTS:
        return provide_cifar(data.name, split, folder, download=download)
    if data.name == TINY_IMAGENET.name:
        return tiny_imagenet(split, folder, download=download)
    return _own_files(data, split, folder / data.name, classes)


def open_synthetic(
    data: DataRecipe, classes: tuple[str, ...], *, data_dir: Path | str | None = None
) -> ImageSet | FileSet:
    """Return the generated images that the recipe names: an .npz file, parquet files, or class folders."""
    path = data_folder(data_dir) / data.synthetic
    spec = data.spec()
    if path.suffix == ".npz":
        return load_npz(path, spec, classes)
    files = [path] if path.suffix == ".parquet" else parquet_files(path, "")
    if files:
        return load_parquet(files, data.synthetic, spec, resized=bool(data.resize))
    found = class_folders(data.synthetic, path, expected=spec.classes, classes=classes)
    return found if data.resize else found.decoded(spec, resized=False)


def _own_files(data: DataRecipe, split: str, root: Path, learned: tuple[str, ...]) -> FileSet | list[Path]:
    """Return the labelled files of class folders, or the parquet files."""
    if not root.is_dir():
        must = f"must be the folder {root} with train and test (or val) below it"
        raise BronetError(f"{data.name} {must}, but there is no such folder; name another place (--data-dir)")
    for name in OTHER_NAMES[split]:
        if (root / name).is_dir():
            classes = learned or class_names_below(root / "train")
            return class_folders(data.name, root / name, expected=data.spec().classes, classes=classes)
        if files := parquet_files(root, name):
            if data.resize and split == "train":
                once = f"unpack them once with: bronet data unpack {root} --split train"
                raise BronetError(f"images to be resized must be in class folders, got parquet files; {once}")
            return files
    names = ", ".join(f"{name}/ or {name}*.parquet" for name in OTHER_NAMES[split])
    raise BronetError(f"{root} must hold {names} with the {split} images, found neither")


def load_digits(split: str) -> ImageSet:
    """Return the 1,297 training or the 500 test images; the split is stratified, and always the same."""
    spec = dataset_spec(DIGITS)
    with np.load(io.BytesIO(_file("digits.npz")), allow_pickle=False) as arrays:
        images = torch.from_numpy(arrays["images"]).unsqueeze(1)
        labels = torch.from_numpy(arrays["labels"]).to(torch.int64)
    classes = tuple(str(digit) for digit in range(spec.classes))
    train, test = stratified_split(labels, TEST_DIGITS, SPLIT_SEED)
    whole = ImageSet(DIGITS, images, labels, classes, spec.scale)
    return whole.subset({"train": train, "test": test}[split])


def load_sample(name: str) -> ImageSet:
    """Return the embedded sample of a data set, pixel for pixel as in its test set; only CIFAR-10 has one."""
    if name != SAMPLED:
        raise BronetError(f"only {SAMPLED} has an embedded sample, got {name}; use the test split")
    spec = dataset_spec(SAMPLED)
    strip = np.asarray(Image.open(io.BytesIO(_file(IMAGES_FILE))).convert("RGB"))
    images = torch.from_numpy(strip.reshape(-1, spec.height, spec.width, spec.channels).transpose(0, 3, 1, 2).copy())
    return ImageSet(SAMPLED, images, sample_rows()[:, 1], LAYOUTS[SAMPLED].classes, spec.scale)


def sample_rows() -> Int64[Tensor, "500 2"]:
    """Return the position in the official test set, and the label, of each image of the sample."""
    return torch.from_numpy(np.loadtxt(io.BytesIO(_file(ROWS_FILE)), np.int64, delimiter=",", skiprows=1))


def _file(name: str) -> bytes:
    return resources.files("bronet.data").joinpath(name).read_bytes()
