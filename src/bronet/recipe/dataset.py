"""Data sets as frozen descriptions: shape of an image, number of classes, scale of a stored pixel.

These are the data sets of the paper's experiments (Section 5 and App. B) and the digits in the package.
"""

import difflib
from dataclasses import dataclass
from typing import Annotated

from bronet.errors import BronetError
from bronet.recipe.architecture import Limits, Pixels, check_settings

SPLITS = ("train", "test", "sample")
"""Parts of a data set; "sample" is the 500 test images of CIFAR-10 that the package holds."""
BYTE_SCALE = 255


@dataclass(frozen=True)
class DatasetSpec:
    """What a model and a loader must agree on; the value of a pixel is its stored byte divided by `scale`."""

    name: str
    channels: Annotated[int, Limits(1, 1_024)]
    height: Pixels
    width: Pixels
    classes: Annotated[int, Limits(2, 65_536)]
    scale: Annotated[int, Limits(1, BYTE_SCALE)] = BYTE_SCALE

    def __post_init__(self) -> None:
        check_settings(self, f"data set {self.name}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        return self.channels, self.height, self.width


DATASETS: dict[str, DatasetSpec] = {
    spec.name: spec
    for spec in (
        DatasetSpec("digits", 1, 8, 8, 10, scale=16),  # a pixel counts the ink of a 4 x 4 block
        DatasetSpec("cifar10", 3, 32, 32, 10),
        DatasetSpec("cifar100", 3, 32, 32, 100),
        DatasetSpec("tiny-imagenet", 3, 64, 64, 200),
        DatasetSpec("imagenet", 3, 224, 224, 1000),
    )
}


def dataset_spec(name: str) -> DatasetSpec:
    """Return the description of a known data set; an unknown name raises and suggests the nearest one."""
    if name in DATASETS:
        return DATASETS[name]
    near = difflib.get_close_matches(name.lower(), DATASETS, n=1)
    own = "a folder of one's own needs data.channels, data.height, data.width and data.classes, too"
    hint = f'did you mean "{near[0]}"?' if near else own
    raise BronetError(f"dataset must be one of {', '.join(DATASETS)}, got {name!r}; {hint}")
