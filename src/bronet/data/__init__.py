"""From the name of a data set to images, labels and classes; augmentation; batches.

Covers the digits shipped with the package and CIFAR-10/100 (Tables 1 to 4). Tiny-ImageNet and ImageNet have
descriptions, so that their models can be built, but no loader yet.
"""

import os
from pathlib import Path

from bronet.data.augment import augment
from bronet.data.batches import epoch_batches, epoch_order, generator_for, steps_per_epoch
from bronet.data.cifar import LAYOUTS, load_cifar
from bronet.data.digits import load_digits
from bronet.data.image_set import ImageSet, stratified_split
from bronet.errors import BronetError
from bronet.recipe.dataset import dataset_spec

__all__ = [
    "ImageSet",
    "augment",
    "epoch_batches",
    "epoch_order",
    "generator_for",
    "load_dataset",
    "steps_per_epoch",
    "stratified_split",
]

SPLITS = ("train", "test")
DATA_DIR_VARIABLE = "BRONET_DATA"
DEFAULT_DATA_DIR = "datasets"


def load_dataset(name: str, split: str, *, data_dir: Path | str | None = None, download: bool = False) -> ImageSet:
    """Return the whole "train" or "test" split of a data set, on the CPU, checked.

    Files are looked for in `data_dir`, else in the folder that the environment variable BRONET_DATA names,
    else in `datasets`. Nothing is downloaded unless `download` is set, and nothing is written for the
    embedded digits.
    """
    spec = dataset_spec(name)
    if split not in SPLITS:
        raise BronetError(f'split must be "train" or "test", got {split!r}')
    if name == "digits":
        return load_digits(split)
    if name in LAYOUTS:
        folder = data_dir or os.environ.get(DATA_DIR_VARIABLE) or DEFAULT_DATA_DIR
        return load_cifar(name, split, Path(folder), download=download)
    raise BronetError(
        f"dataset must be one of digits, {', '.join(LAYOUTS)} to load images, got {spec.name}: "
        "its loader is not part of this version"
    )
