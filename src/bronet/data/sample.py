"""500 test images of CIFAR-10 inside the package, so that a trained network can be tried without any download.

The first 50 test images of each class, in test order, as one lossless strip of pixels and a table of their test
indices and labels. A number computed on them is a sample's: it says little about the test set's last digit.
`scripts/make_cifar10_sample.py` makes the files; CIFAR10-ATTRIBUTION.txt says whose images they are.
"""

import io
from importlib import resources

import numpy as np
import torch
from PIL import Image

from bronet.data.cifar import LAYOUTS
from bronet.data.image_set import ImageSet
from bronet.errors import BronetError
from bronet.recipe.dataset import dataset_spec

SAMPLED = "cifar10"
"""The one data set with an embedded sample."""
PER_CLASS = 50
IMAGES_FILE = "cifar10-sample.png"
ROWS_FILE = "cifar10-sample.csv"
HEADER = "test_index,label"


def load_sample(name: str) -> ImageSet:
    """Return the embedded sample of a data set, pixel for pixel as in its test set; only CIFAR-10 has one."""
    if name != SAMPLED:
        raise BronetError(f"only {SAMPLED} has an embedded sample, got {name}; use the test split")
    spec = dataset_spec(SAMPLED)
    strip = np.asarray(Image.open(io.BytesIO(_file(IMAGES_FILE))).convert("RGB"))
    images = torch.from_numpy(strip.reshape(-1, spec.height, spec.width, spec.channels).transpose(0, 3, 1, 2).copy())
    labels = torch.tensor([label for _, label in _rows()])
    return ImageSet(SAMPLED, images, labels, LAYOUTS[SAMPLED].classes, spec.scale)


def sample_indices() -> tuple[int, ...]:
    """Return the position of each image of the sample in the official test set."""
    return tuple(index for index, _ in _rows())


def _rows() -> list[tuple[int, int]]:
    _, *lines = _file(ROWS_FILE).decode().splitlines()
    pairs = (line.split(",") for line in lines)
    return [(int(index), int(label)) for index, label in pairs]


def _file(name: str) -> bytes:
    return resources.files("bronet.data").joinpath(name).read_bytes()
