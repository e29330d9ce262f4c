"""An ordinary network for the digits, to be attacked beside a certified one: as large and as accurate, nothing proved.

`python -m lab.ordinary_network` trains it, measures its accuracy on the test images, and attacks it on each of them.
The file holds its weights and, of every test image, how far away another answer was found: upper bounds on its
robustness, as certified radii are lower ones.
"""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
from jaxtyping import Float
from safetensors.torch import load_file
from torch import Tensor, nn

from bronet.report.figures import Curve

WEIGHTS = "ordinary-digits.safetensors"
FOUND = "found"
DATA = "digits"
IMAGE_SHAPE = (1, 8, 8)


def ordinary_layers() -> nn.Sequential:
    """Return convolutions, ReLU, max-pooling and dense layers, as one would write them without a thought of proofs."""
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(24, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 80),
        nn.ReLU(),
        nn.Linear(80, 10),
    )


@dataclass(frozen=True)
class Ordinary:
    """The network in float64, and its record: `found` is 0 where it is wrong of itself, inf where nothing was found."""

    network: nn.Sequential
    found: Float[Tensor, " images"]

    @property
    def accuracy(self) -> float:
        """The share of the test images that it gets right while nobody attacks it."""
        return float((self.found > 0).double().mean())

    @property
    def parameters(self) -> int:
        """The number of its parameters."""
        return sum(parameter.numel() for parameter in self.network.parameters())

    def curve(self) -> Curve:
        """Return the share of test images that stay right under the attack, as a function of its budget."""
        found = np.sort(self.found.numpy())
        corners = np.unique(np.append(found[np.isfinite(found)], 0.0))
        return Curve(corners, 1 - np.searchsorted(found, corners, side="right") / found.size)


def read_ordinary(path: Path | None = None) -> Ordinary:
    """Return the network of a file, by default the one of the package."""
    tensors = load_file(path or str(files("bronet.web").joinpath(WEIGHTS)))
    found = tensors.pop(FOUND)
    network = ordinary_layers()
    network.load_state_dict(tensors)
    return Ordinary(network.double().eval().requires_grad_(False), found)
