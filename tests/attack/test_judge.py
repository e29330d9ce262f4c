"""The judge and the checks before an attack: exact distances, and every reason why a result could be meaningless."""

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from bronet.attack import pgd
from bronet.attack.judge import Norm, distances, into_ball, judge
from bronet.attack.search import preflight

CLASSES = 5


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def _exact(first: Tensor, second: Tensor, norm: Norm) -> Fraction:
    """Return the square of the l2 distance, or the l_inf distance."""
    pairs = zip(first.flatten().tolist(), second.flatten().tolist(), strict=True)
    gaps = [abs(Fraction(a) - Fraction(b)) for a, b in pairs]
    return sum((gap**2 for gap in gaps), Fraction(0)) if norm == "l2" else max(gaps)


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("eps", [1e-9, 0.03, 0.5, 10.0])
def test_points_are_moved_into_the_exact_ball(norm: Norm, eps: float) -> None:
    images, found = draw(20, 1, 3, 3), draw(20, 1, 3, 3, seed=1, dtype=torch.float32).double()
    points = into_ball(images, found, norm=norm, eps=eps)
    limit = Fraction(eps) ** 2 if norm == "l2" else Fraction(eps)
    for image, point in zip(images, points, strict=True):
        assert _exact(image, point, norm) <= limit
    assert ((points >= 0) & (points <= 1)).all()
    if eps == 0.03:
        l2, linf = distances(images, points)
        assert ((l2 if norm == "l2" else linf) > 0.0299).all(), "the budget is used"
    if eps == 10.0:
        torch.testing.assert_close(points, found, rtol=0, atol=1e-15)


def test_distances_are_upper_bounds() -> None:
    a, b = draw(20, 1, 5, 5), draw(20, 1, 5, 5, seed=1)
    l2, linf = distances(a, b)
    for i in range(20):
        assert (
            _exact(a[i], b[i], "l2") <= Fraction(float(l2[i])) ** 2 <= _exact(a[i], b[i], "l2") * (1 + Fraction(1e-12))
        )
        assert _exact(a[i], b[i], "linf") <= Fraction(float(linf[i]))


def test_the_judge_uses_the_program_it_is_given() -> None:
    images = torch.full((2, 1, 2, 2), 0.5, dtype=torch.float64)
    found = images + torch.tensor([0.1, -0.1], dtype=torch.float64).view(2, 1, 1, 1)

    def logits(x: Tensor) -> Tensor:
        total = x.flatten(1).sum(dim=1) - 2
        return torch.stack((total, -total), dim=1)

    assert judge(logits, images, found, norm="l2", eps=1.0).prediction.tolist() == [0, 1]


def _linear(images: Tensor) -> Tensor:
    weight = torch.randn(CLASSES, 16, generator=torch.Generator().manual_seed(0))
    return (images.flatten(1) - 0.5) @ weight.to(images.dtype).mT


def _warnings(model: object, images: Tensor | None = None) -> str:
    images = draw(8, 1, 4, 4, dtype=torch.float32) if images is None else images
    assert callable(model)
    labels = torch.arange(len(images)) % CLASSES
    return "\n".join(
        preflight(model, images, labels.clamp_max(model(images).shape[1] - 1), model(images).argmax(dim=1))
    )


def test_a_sound_model_has_no_warnings() -> None:
    assert _warnings(_linear) == ""


def test_models_without_gradients_are_noticed() -> None:
    assert "8 of 8 images have no" in _warnings(lambda x: _linear(x).detach() + 0 * x.sum())
    assert "8 of 8 images have no" in _warnings(lambda x: _linear(x.detach()))
    assert "8 of 8 images have no" in _warnings(lambda x: _linear((x * 8).round() / 8))


def test_random_models_are_noticed() -> None:
    assert "other logits when asked twice" in _warnings(lambda x: _linear(x + 0.1 * torch.randn_like(x)))


def test_saturated_logits_are_noticed() -> None:
    assert "saturated logits" in _warnings(lambda x: 1000 * _linear(x))


def test_logits_that_are_not_finite_are_noticed() -> None:
    shown = _warnings(lambda x: _linear(x) * torch.inf)
    assert "not finite" in shown


def test_few_classes_are_noticed() -> None:
    assert "2 classes are too few" in _warnings(lambda x: _linear(x)[:, :2])


def test_a_class_that_changes_with_the_precision_is_noticed() -> None:
    images = draw(8, 1, 4, 4, dtype=torch.float32)
    other = (_linear(images).argmax(dim=1) + 1) % CLASSES
    shown = preflight(_linear, images, torch.zeros(8, dtype=torch.int64), other)
    assert any("8 of 8 images have another class" in line for line in shown)


@pytest.mark.parametrize("eps", [0.0, 2 / 255, 0.5])
def test_pgd_stays_in_its_cube_exactly_and_uses_it(eps: float) -> None:
    images = draw(6, 1, 4, 4, dtype=torch.float32)
    labels = _linear(images).argmax(dim=1)
    generator = torch.Generator().manual_seed(0)
    found = pgd(_linear, images, labels, norm="linf", eps=eps, steps=10, restarts=2, generator=generator)
    for image, adversarial in zip(images, found.images, strict=True):
        assert _exact(image, adversarial, "linf") <= Fraction(eps)
    assert found.images.min() >= 0
    assert found.images.max() <= 1
    if eps == 0.5:
        assert found.success.all()
