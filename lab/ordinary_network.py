"""The ordinary network on the page of `bronet serve`: trained, measured and attacked in a few minutes.

    python -m lab.ordinary_network

Adam at its usual rate, cross-entropy, 30 epochs, the first seed: nothing is tuned for or against it. It prints the
accuracy on the 500 test images beside that of `bronet-digits/digits`; a difference above half a point is an error.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import bronet.web
from bronet.attack.judge import distances, drawn_nearer, into_ball
from bronet.attack.search import l2_pgd
from bronet.data import Batch, ImageSet, load_images
from bronet.errors import BronetError
from bronet.pretrained import load_pretrained
from bronet.recipe import named_recipe
from bronet.training.loop import Learner, training_loop
from bronet.web.served import FOUND, WEIGHTS, ordinary_layers

RIVAL = "bronet-digits/digits"
EPOCHS = 30
BATCH = 64
RATE = 1e-3
BUDGETS = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0, 1.25, 1.5, 2.0)
STEPS = 100
RESTARTS = 3
LARGEST_DIFFERENCE = 0.005


class Lessons(Learner):
    """The ordinary network and its optimiser."""

    def __init__(self) -> None:
        self.network = ordinary_layers()
        self._optimiser = torch.optim.Adam(self.network.parameters(), RATE)

    def step(self, batch: Batch, number: int) -> None:
        """Take a step on a batch."""
        self._optimiser.zero_grad()
        nn.functional.cross_entropy(self.network(batch.pixels), batch.labels).backward()
        self._optimiser.step()


def train(images: ImageSet) -> nn.Sequential:
    """Return the trained network."""
    torch.manual_seed(0)
    lessons, pixels = Lessons(), images.pixels(torch.arange(len(images)))
    orders = (torch.randperm(len(images)) for _ in range(EPOCHS))
    batches = (Batch(pixels[index], images.labels[index]) for order in orders for index in order.split(BATCH))
    training_loop(lessons, batches, steps_per_epoch=-(-len(images) // BATCH))
    return lessons.network.eval().requires_grad_(False)


def nearest_found(network: nn.Sequential, images: ImageSet) -> Tensor:
    """Return for each image how far away the nearest wrong answer was found: 0 if it is wrong itself, inf if none."""
    network, pixels = network.double(), images.pixels(torch.arange(len(images)), dtype=torch.float64)
    labels = images.labels
    nearest = torch.full(labels.shape, torch.inf, dtype=torch.float64)
    for eps in BUDGETS:
        generator = torch.Generator().manual_seed(0)
        search = l2_pgd(network, pixels, labels, eps=eps, steps=STEPS, restarts=RESTARTS, generator=generator)
        points = drawn_nearer(network, pixels, into_ball(pixels, search.images, norm="l2", eps=eps), labels)
        changed = network(points).argmax(dim=1) != labels
        nearest = torch.where(changed, nearest.minimum(distances(pixels, points)[0]), nearest)
    return torch.where(network(pixels).argmax(dim=1) == labels, nearest, 0.0)


def accuracy(network: nn.Module, images: ImageSet) -> float:
    """Return the share of images that a network gets right."""
    with torch.no_grad():
        return float((network(images.pixels(torch.arange(len(images)))).argmax(dim=1) == images.labels).double().mean())


def main() -> None:
    """Train, measure, attack, and write the file of the page."""
    data = named_recipe("digits/quickstart").data
    test = load_images(data, "test")
    network = train(load_images(data, "train"))
    own, rival = accuracy(network, test), accuracy(load_pretrained(RIVAL), test)
    print(f"accuracy on {len(test)} test images: {own:.1%} (ordinary), {rival:.1%} ({RIVAL})")
    if abs(own - rival) > LARGEST_DIFFERENCE:
        raise BronetError(f"accuracies must differ by at most {LARGEST_DIFFERENCE}, got {own} and {rival}")
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    found = nearest_found(network, test)
    for eps in BUDGETS:
        print(f"still right under attack within {eps}: {float((found > eps).double().mean()):.1%}")
    save_file({**state, FOUND: found}, Path(bronet.web.__path__[0]) / WEIGHTS)


if __name__ == "__main__":
    main()
