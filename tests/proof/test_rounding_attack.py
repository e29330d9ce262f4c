"""Rounding attacks: points a hair inside the radius, over float32 and float64 neighbours, after the published ones.

A linear classifier whose bias is a thousand times its margins: its bound is exact, so that a radius has nothing to hide
behind but its rounding budget.
"""

from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from bronet import prove
from bronet.certificates.run import naive_gap_lipschitz, naive_radius
from bronet.layers import Flatten, LastLayerNormalized, LipschitzLayer, Normalization
from bronet.models import CertifiableModel
from bronet.radius import margin_radius

IMAGES = 150

pytestmark = pytest.mark.usefixtures("one_thread")
NEIGHBOURS = 40
BIAS = 1000.0


class Shifted(CertifiableModel):
    """f(x) = W (x - 1/2) + b with |b| = 1000: the logits round a thousand times more coarsely than the margins need."""

    def __init__(self) -> None:
        super().__init__((1, 4, 4))
        self.normalization: LipschitzLayer = Normalization((0.5,))
        self.flatten = Flatten()
        self.head = LastLayerNormalized(16, 3)
        with torch.no_grad():
            self.head.weight.copy_(torch.randn(3, 16, generator=torch.Generator().manual_seed(0)))
            self.head.bias.fill_(BIAS)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.flatten(self.normalization(images)))


def _images(dtype: torch.dtype) -> Tensor:
    drawn = torch.rand(IMAGES, 1, 4, 4, generator=torch.Generator().manual_seed(1), dtype=dtype)
    return 0.4 + 0.2 * drawn


def _exactly_inside(image: Tensor, point: Tensor, radius: float) -> bool:
    pairs = zip(image.flatten().tolist(), point.flatten().tolist(), strict=True)
    return sum(((Fraction(a) - Fraction(b)) ** 2 for a, b in pairs), Fraction(0)) < Fraction(radius) ** 2


def broken_by_rounding(
    logits: Callable[[Tensor], Tensor], images: Tensor, radius: Tensor, rows: Tensor
) -> list[tuple[int, float]]:
    """Return images, and how far the point found is inside the radius, whose class changes strictly inside it.

    The search walks to the boundary along the steepest direction, then tries neighbours in the last places.
    """
    generator = torch.Generator().manual_seed(2)
    scores = logits(images)
    top2 = scores.topk(2, dim=1).indices
    prediction, runner_up = scores.argmax(dim=1), top2.sum(dim=1) - scores.argmax(dim=1)
    steepest = (rows[runner_up] - rows[prediction]).double()
    steepest = (steepest / steepest.norm(dim=1, keepdim=True)).view(images.shape)
    ulp = torch.finfo(images.dtype).eps
    found: dict[int, float] = {}
    for step in range(NEIGHBOURS):
        # From ten units in the last place outside to thousands inside; rounding decides which points are which.
        scale = 1 - ulp * (2.0 ** (step / 3) - 10)
        target = images.double() + scale * radius.double().view(-1, 1, 1, 1) * steepest
        noise = torch.randint(-1, 2, images.shape, generator=generator, dtype=torch.float64) * ulp / 2
        points = (target + noise).to(images.dtype)
        changed = logits(points).argmax(dim=1) != prediction
        for i in changed.nonzero()[:, 0].tolist():
            depth = float(radius[i] - (points[i].double() - images[i].double()).norm())
            if depth > found.get(i, -1.0) and _exactly_inside(images[i], points[i], float(radius[i])):
                found[i] = depth
    return sorted(found.items())


@pytest.fixture(scope="module")
def model() -> Shifted:
    return Shifted().eval()


@torch.no_grad()
def test_naive_float32_certificates_break(model: Shifted) -> None:
    images = _images(torch.float32)
    radius = naive_radius(model, images, naive_gap_lipschitz(model, prove(model)))
    broken = broken_by_rounding(model, images, radius, model.head.rows())
    assert len(broken) > IMAGES / 4
    assert max(depth for _, depth in broken) > 1e-5


@torch.no_grad()
def test_naive_certificates_break_in_float64_too(model: Shifted) -> None:
    """Float64 alone is no proof: without a rounding budget the same search finds images."""
    network, images = prove(model), _images(torch.float64)
    radius = margin_radius(network.logits(images), network.gaps).radius
    rows = model.head.rows().double()
    assert len(broken_by_rounding(network.logits, images, radius, rows)) > IMAGES / 20


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@torch.no_grad()
def test_our_certificates_survive(model: Shifted, dtype: torch.dtype) -> None:
    network, images = prove(model), _images(dtype)
    certificate = network.certify(images)
    assert broken_by_rounding(network.logits, images, certificate.radius, model.head.rows()) == []
    # The radius that survives is the true distance, less a rounding budget: nothing was given away.
    distance = margin_radius(network.logits(images), network.gaps).radius
    assert (certificate.radius <= distance).all()
    assert (certificate.radius >= distance * (1 - 1e-7) - 1e-11).all()
