"""The embedded data set: 1,797 handwritten digits of 8 x 8 pixels (UCI, CC BY 4.0), shipped with the package.

Not an experiment of the paper: it is what the quickstart and the tests run on, with no download. The
attribution is in `DIGITS-ATTRIBUTION.txt` next to the data. Training and test images come from the same 13
writers.
"""

import io
from importlib import resources

import numpy as np
import torch

from bronet.data.image_set import ImageSet, stratified_split
from bronet.recipe.dataset import dataset_spec

TEST_IMAGES = 500
SPLIT_SEED = 0
"""Fixed for good: another seed is another data set, whose results cannot be compared."""


def load_digits(split: str) -> ImageSet:
    """Return the 1,297 training or the 500 test images; the split is stratified, and always the same."""
    spec = dataset_spec("digits")
    content = resources.files("bronet.data").joinpath("digits.npz").read_bytes()
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        images = torch.from_numpy(arrays["images"]).unsqueeze(1)
        labels = torch.from_numpy(arrays["labels"]).to(torch.int64)
    classes = tuple(str(digit) for digit in range(spec.classes))
    train, test = stratified_split(labels, TEST_IMAGES, SPLIT_SEED)
    whole = ImageSet("digits", images, labels, classes, spec.scale)
    return whole.subset({"train": train, "test": test}[split])
