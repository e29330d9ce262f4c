"""Two networks for points of the plane, trained on the spot: one whose layers cannot stretch, one that is ordinary.

Both are made of the package's layers or proved by its rules, so what the drawings show is what certificates are.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bronet.data import Batch
from bronet.graph import prove
from bronet.layers import Bias, BROLinear, Flatten, LastLayerNormalized, MaxMin
from bronet.losses import emma
from bronet.models import CertifiableModel
from bronet.radius import margin_radius
from bronet.training.loop import Learner, training_loop

CLASSES = 3
POINTS = 15
"""Per class."""
WIDTH = 32
DEPTH = 8
TEMPERATURE = 0.03
"""Logits of a network that cannot stretch differ by less than the points' distances."""

Loss = Callable[[Batch, int], Tensor]
"""Of a batch, in the step with this number."""


class LipschitzNetwork(CertifiableModel):
    """A point as an image of two channels and one pixel; reflections, shifts and MaxMin; a normalised head."""

    def __init__(self) -> None:
        super().__init__((2, 1, 1))
        layers: list[nn.Module] = [Flatten()]
        for depth in range(DEPTH):
            layers += [BROLinear(2 if depth == 0 else WIDTH, WIDTH), Bias(WIDTH), MaxMin()]
        self.body = nn.Sequential(*layers)
        self.head = LastLayerNormalized(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(images))
        return logits


def ordinary_network() -> nn.Sequential:
    """Return the same network with unconstrained matrices."""
    layers: list[nn.Module] = [nn.Flatten()]
    for depth in range(DEPTH):
        layers += [nn.Linear(2 if depth == 0 else WIDTH, WIDTH), MaxMin()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))


@dataclass(frozen=True)
class Points:
    """Points of [0, 1]^2 with their classes."""

    x: Tensor
    label: Tensor

    @property
    def images(self) -> Tensor:
        return self.x[:, :, None, None]


def three_arms() -> Points:
    """Return three arms of a spiral with a little noise."""
    generator = torch.Generator().manual_seed(3)
    t = torch.linspace(0.25, 1.0, POINTS, dtype=torch.float64).repeat(CLASSES)
    label = torch.arange(CLASSES).repeat_interleave(POINTS)
    angle = 2 * torch.pi * label / CLASSES + 2.6 * t
    noise = 0.018 * torch.randn(2, len(t), generator=generator, dtype=torch.float64)
    x = 0.5 + 0.44 * t * torch.stack([angle.cos(), angle.sin()]) + noise
    return Points(x.T.contiguous(), label)


@dataclass(frozen=True)
class Proof:
    """What is known of a network at the points: its classes on a grid, and a radius for each point."""

    bound: float
    correct: Tensor
    radius: Tensor
    grid_class: Tensor


def grid(side: int) -> Tensor:
    """Return side x side points of [0, 1]^2 as images, row by row from below."""
    steps = torch.linspace(0, 1, side, dtype=torch.float64)
    y, x = torch.meshgrid(steps, steps, indexing="ij")
    return torch.stack([x, y], -1).reshape(-1, 2, 1, 1)


def trained_lipschitz(points: Points, *, steps: int = 300) -> LipschitzNetwork:
    """Train the network that cannot stretch, with cross-entropy on EMMA's logits."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LipschitzNetwork().double()

    def loss(batch: Batch, number: int) -> Tensor:
        eps = 0.05 * min(1.0, 2 * number / steps)
        logits = emma(model(batch.pixels), batch.labels, model.gap_lipschitz(), eps=eps)
        return nn.functional.cross_entropy(logits / TEMPERATURE, batch.labels)

    _train(model, loss, points, steps)
    return model.eval()


def trained_ordinary(points: Points, *, steps: int = 300) -> nn.Sequential:
    """Train the ordinary network with cross-entropy."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = ordinary_network().double()

    def loss(batch: Batch, number: int) -> Tensor:
        return nn.functional.cross_entropy(model(batch.pixels), batch.labels)

    _train(model, loss, points, steps)
    return model.eval()


class _PointNetwork(Learner):
    """A network that learns by NAdam, at a constant rate, with the loss of a batch in a step."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.loss = loss
        self.optimizer = torch.optim.NAdam(model.parameters(), lr=5e-3)

    def step(self, batch: Batch, number: int) -> None:
        loss = self.loss(batch, number)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()


def _train(model: nn.Module, loss: Loss, points: Points, steps: int) -> None:
    """Train a network on all points in every step."""
    batches = [Batch(points.images, points.label)] * steps
    training_loop(_PointNetwork(model, loss), batches, steps_per_epoch=steps)


@torch.no_grad()
def lipschitz_proof(model: LipschitzNetwork, points: Points, *, side: int) -> Proof:
    """Return the certificate of every point."""
    network = prove(model)
    certificate = network.certify(points.images)
    classes = network.logits(grid(side)).argmax(1)
    return Proof(network.lipschitz, certificate.prediction == points.label, certificate.radius, classes)


@torch.no_grad()
def ordinary_proof(model: nn.Sequential, points: Points, *, side: int) -> Proof:
    """Return what the product of the layers' norms says of the ordinary network, rounding left aside."""
    *body, head = [layer for layer in model if isinstance(layer, nn.Linear)]
    bound = float(torch.stack([torch.linalg.matrix_norm(layer.weight, 2) for layer in body]).prod())
    rows = head.weight
    gaps = bound * (rows[:, None] - rows[None]).norm(dim=-1)
    found = margin_radius(model(points.images), gaps)
    return Proof(bound, found.prediction == points.label, found.radius, model(grid(side)).argmax(1))
