"""L2-PGD: stays in the ball and in the pixel range, breaks a linear classifier, respects a certificate."""

from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from bronet.attack import l2_pgd, linf_pgd
from bronet.errors import BronetError
from bronet.radius import margin_radius

IMAGES, SHAPE, CLASSES = 16, (1, 4, 4), 3
PIXELS = 16


def _linear(dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor]:
    """Return a linear classifier of images around 1/2, and its gap matrix."""
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(PIXELS, CLASSES, dtype=dtype)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(CLASSES, PIXELS, generator=generator))
        layer.bias.copy_(-layer.weight.sum(dim=1) / 2)
    weight = layer.weight.detach()
    return nn.Sequential(nn.Flatten(), layer), (weight[:, None] - weight[None, :]).norm(dim=2)


def _images(dtype: torch.dtype = torch.float64, low: float = 0.4, high: float = 0.6) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return low + (high - low) * torch.rand(IMAGES, *SHAPE, generator=generator, dtype=dtype)


def _exact_square_distance(first: Tensor, second: Tensor) -> Fraction:
    pairs = zip(first.flatten().tolist(), second.flatten().tolist(), strict=True)
    return sum(((Fraction(a) - Fraction(b)) ** 2 for a, b in pairs), Fraction(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [0.0, 1e-8, 0.03, 36 / 255, 3.0])
def test_every_image_stays_in_its_ball_exactly_and_in_the_pixel_range(dtype: torch.dtype, eps: float) -> None:
    model, _ = _linear(dtype)
    images = _images(dtype, low=0.0, high=1.0)
    labels = model(images).argmax(dim=1)
    generator = torch.Generator().manual_seed(2)
    found = l2_pgd(model, images, labels, eps=eps, steps=5, restarts=3, generator=generator)
    assert found.images.dtype == dtype
    assert found.images.min() >= 0
    assert found.images.max() <= 1
    for image, adversarial in zip(images, found.images, strict=True):
        assert _exact_square_distance(image, adversarial) <= Fraction(eps) ** 2


def test_the_ball_is_used_up_to_rounding() -> None:
    model, _ = _linear()
    images = _images()
    found = l2_pgd(model, images, model(images).argmax(dim=1), eps=0.1, steps=10)
    torch.testing.assert_close(found.distance, torch.full((IMAGES,), 0.1, dtype=torch.float64))


def test_a_linear_classifier_falls_exactly_beyond_its_radius() -> None:
    """Images near 1/2 keep the box out of the way, so that the radius is the distance to an attack."""
    model, gap = _linear()
    images = _images()
    prediction, _, radius = margin_radius(model(images), gap)
    inside = l2_pgd(model, images, prediction, eps=radius * (1 - 1e-6), steps=50)
    outside = l2_pgd(model, images, prediction, eps=radius * (1 + 1e-2), steps=50)
    assert radius.max() < 0.4, "the box would interfere"
    assert not inside.success.any()
    assert outside.success.all()


def test_inside_the_radius_a_contraction_keeps_its_prediction() -> None:
    """A small 1-Lipschitz network (orthogonal layers, MaxMin-like activation) with the gap of its head."""
    generator = torch.Generator().manual_seed(3)
    square = torch.linalg.qr(torch.randn(PIXELS, PIXELS, generator=generator, dtype=torch.float64)).Q
    head = torch.randn(CLASSES, PIXELS, generator=generator, dtype=torch.float64)

    def model(images: Tensor) -> Tensor:
        hidden = (images.flatten(1) - 0.5) @ square.T
        return hidden.reshape(-1, 8, 2).sort(dim=2).values.flatten(1) @ head.T

    gap = (head[:, None] - head[None, :]).norm(dim=2)
    images = _images(low=0.0, high=1.0)
    prediction, _, radius = margin_radius(model(images), gap)
    found = l2_pgd(model, images, prediction, eps=radius * (1 - 1e-9), steps=30, restarts=2)
    assert (radius > 0).all()
    assert not found.success.any()


def test_more_budget_never_finds_less() -> None:
    model, _ = _linear()
    images = _images()
    labels = model(images).argmax(dim=1)
    rates = [int(l2_pgd(model, images, labels, eps=eps, steps=20).success.sum()) for eps in (0.0, 0.1, 0.2, 1.0)]
    assert rates[0] == 0
    assert rates == sorted(rates)
    assert rates[-1] == IMAGES


def test_parameters_get_no_gradient_and_no_grad_mode_does_not_stop_the_attack() -> None:
    model, _ = _linear()
    images = _images()
    with torch.no_grad():
        found = l2_pgd(model, images, model(images).argmax(dim=1), eps=1.0, steps=20)
    assert found.success.all()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_misclassified_image_is_a_success_at_once() -> None:
    model, _ = _linear()
    images = _images()
    wrong = (model(images).argmax(dim=1) + 1) % CLASSES
    found = l2_pgd(model, images, wrong, eps=0.0, steps=1)
    assert found.success.all()
    assert torch.equal(found.images, images)


def test_the_generator_decides_the_result() -> None:
    model, _ = _linear()
    images = _images()
    labels = model(images).argmax(dim=1)
    first, again = (
        l2_pgd(model, images, labels, eps=0.05, steps=3, restarts=3, generator=torch.Generator().manual_seed(4))
        for _ in range(2)
    )
    assert torch.equal(first.images, again.images)


def test_a_flat_model_yields_finite_images() -> None:
    images = _images()
    found = l2_pgd(lambda x: x.flatten(1)[:, :CLASSES] * 0, images, torch.zeros(IMAGES).long(), eps=0.1, steps=3)
    assert found.images.isfinite().all()
    assert not found.success.any()


def test_bad_arguments_are_refused() -> None:
    model, _ = _linear()
    images, labels = _images(), torch.zeros(IMAGES).long()
    with pytest.raises(BronetError, match="eps must be finite and at least 0, got -1"):
        l2_pgd(model, images, labels, eps=-1.0)
    with pytest.raises(BronetError, match="steps must be at least 1, got 0"):
        l2_pgd(model, images, labels, eps=0.1, steps=0)
    with pytest.raises(BronetError, match=r"pixels in \[0, 1\]"):
        l2_pgd(model, images * torch.nan, labels, eps=0.1)


def test_linf_pgd_stays_in_the_cube_and_finds_more_in_a_larger_one() -> None:
    model, _ = _linear()
    images = _images()
    prediction = model(images).argmax(dim=1)
    small, large = (linf_pgd(model, images, prediction, eps=eps, steps=10) for eps in (0.001, 0.3))
    for found, eps in ((small, 0.001), (large, 0.3)):
        moved = (found.images - images).abs().flatten(1).amax(dim=1)
        assert float(moved.max()) <= eps
        assert torch.equal(found.distance, moved)
    assert int(large.success.sum()) > int(small.success.sum())
