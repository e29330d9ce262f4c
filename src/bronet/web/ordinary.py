"""An ordinary network for the digits, to be attacked beside a certified one: as large and as accurate, nothing proved.

`python -m lab.ordinary_network` trains it, measures its accuracy on the test images, and attacks it on each of them.
The file holds its weights and, of every test image, how far away another answer was found: upper bounds on its
robustness, as certified radii are lower ones.
"""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from safetensors.torch import load_file
from torch import Tensor, nn

from bronet.attack.judge import distances, into_ball
from bronet.attack.pgd import l2_pgd
from bronet.attack.single import Finding, Progress, drawn_nearer
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

    def attacked(
        self, image: Float[Tensor, "1 c h w"], *, eps: float, steps: int, restarts: int, progress: Progress
    ) -> Finding:
        """Search the ball of radius eps for another answer, as `attack_prediction` does; the radius proved is 0."""
        with torch.no_grad():
            label = self.network(image).argmax(dim=1)
        done, passes = 0, restarts * (steps + 1) + 1

        def counted(pixels: Tensor) -> Tensor:
            nonlocal done
            progress(done, passes)
            done += 1
            return self.network(pixels)

        generator = torch.Generator().manual_seed(0)
        search = l2_pgd(counted, image, label, eps=eps, steps=steps, restarts=restarts, generator=generator)
        point = drawn_nearer(self.network, image, into_ball(image, search.images, norm="l2", eps=eps), label)
        with torch.no_grad():
            found = int(self.network(point).argmax(dim=1))
        return Finding(point, int(label), found, float(distances(image, point)[0]), radius=0.0)


def read_ordinary(path: Path | None = None) -> Ordinary:
    """Return the network of a file, by default the one of the package."""
    tensors = load_file(path or str(files("bronet.web").joinpath(WEIGHTS)))
    found = tensors.pop(FOUND)
    network = ordinary_layers()
    network.load_state_dict(tensors)
    return Ordinary(network.double().eval().requires_grad_(False), found)
