"""The images inside the package: 1,797 handwritten digits, and 500 test images of CIFAR-10. Nothing is downloaded.

The quick start and the tests use the digits (8 x 8 pixels, UCI, CC BY 4.0); training and test images come from the same
13 writers. The sample of CIFAR-10 lets one try a trained network: the first 50 test images of each class, in test
order, as one lossless strip of pixels and a table of their test indices and labels, made by
`scripts/make_cifar10_sample.py`. DIGITS-ATTRIBUTION.txt and CIFAR10-ATTRIBUTION.txt name the authors.
"""

import io
from importlib import resources

import numpy as np
import torch
from PIL import Image

from bronet.data.image_set import ImageSet, stratified_split
from bronet.data.official import LAYOUTS
from bronet.errors import BronetError
from bronet.recipe.dataset import DATASETS

TEST_IMAGES = 500
SPLIT_SEED = 0
"""Never change this: results for another split cannot be compared."""

SAMPLED = "cifar10"
"""The one data set with an embedded sample."""
PER_CLASS = 50
IMAGES_FILE = "cifar10-sample.png"
ROWS_FILE = "cifar10-sample.csv"
HEADER = "test_index,label"


def load_digits(split: str) -> ImageSet:
    """Return the 1,297 training or the 500 test images; the split is stratified, and always the same."""
    spec = DATASETS["digits"]
    with np.load(io.BytesIO(_file("digits.npz")), allow_pickle=False) as arrays:
        images = torch.from_numpy(arrays["images"]).unsqueeze(1)
        labels = torch.from_numpy(arrays["labels"]).to(torch.int64)
    classes = tuple(str(digit) for digit in range(spec.classes))
    train, test = stratified_split(labels, TEST_IMAGES, SPLIT_SEED)
    whole = ImageSet("digits", images, labels, classes, spec.scale)
    return whole.subset({"train": train, "test": test}[split])


def load_sample(name: str) -> ImageSet:
    """Return the embedded sample of a data set, pixel for pixel as in its test set; only CIFAR-10 has one."""
    if name != SAMPLED:
        raise BronetError(f"only {SAMPLED} has an embedded sample, got {name}; use the test split")
    spec = DATASETS[SAMPLED]
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
