"""The radius: exact on linear classifiers, zero where nothing is known, rounded to the safe side."""

from fractions import Fraction

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from bronet.errors import BronetError
from bronet.radius import certified_at, implied_radius, margin_radius, targeted_radii

CLASSES, PIXELS, IMAGES = 5, 12, 40


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _gap_of_rows(weight: Float[Tensor, "k d"]) -> Float[Tensor, "k k"]:
    return (weight[:, None] - weight[None, :]).norm(dim=2)


def _tolerance(dtype: torch.dtype) -> float:
    return 10 * PIXELS * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_radius_of_a_linear_classifier_is_the_distance_to_the_nearest_boundary(dtype: torch.dtype) -> None:
    weight = torch.randn(CLASSES, PIXELS, generator=_generator(1), dtype=dtype)
    bias = torch.randn(CLASSES, generator=_generator(2), dtype=dtype)
    images = torch.randn(IMAGES, PIXELS, generator=_generator(3), dtype=dtype)
    found = margin_radius(images @ weight.T + bias, _gap_of_rows(weight))

    for image, prediction, radius in zip(images, found.prediction, found.radius, strict=True):
        distances = []
        for other in set(range(CLASSES)) - {int(prediction)}:
            # The nearest point of the hyperplane f_t = f_j, from a least-squares projection.
            normal, level = weight[prediction] - weight[other], bias[other] - bias[prediction]
            step = torch.linalg.lstsq(normal[None], (level - normal @ image)[None, None]).solution
            distances.append(float(step.norm()))
        assert float(radius) == pytest.approx(min(distances), rel=_tolerance(dtype), abs=_tolerance(dtype))


def test_radius_of_a_linear_classifier_cannot_be_enlarged() -> None:
    weight = torch.randn(CLASSES, PIXELS, generator=_generator(4), dtype=torch.float64)
    images = torch.randn(IMAGES, PIXELS, generator=_generator(5), dtype=torch.float64)
    radii = targeted_radii(images @ weight.T, _gap_of_rows(weight))
    radius, nearest = radii.min(dim=1)
    prediction = (images @ weight.T).argmax(dim=1)
    direction = torch.nn.functional.normalize(weight[nearest] - weight[prediction], dim=1)

    inside = images + direction * (radius * (1 - 1e-9))[:, None]
    outside = images + direction * (radius * (1 + 1e-9) + 1e-9)[:, None]
    assert torch.equal((inside @ weight.T).argmax(dim=1), prediction)
    assert torch.equal((outside @ weight.T).argmax(dim=1), nearest)


def test_the_predicted_class_is_infinitely_far_from_itself() -> None:
    logits = torch.randn(IMAGES, CLASSES, generator=_generator())
    radii = targeted_radii(logits, torch.ones(CLASSES, CLASSES))
    own = radii.gather(1, logits.argmax(dim=1, keepdim=True))
    assert own.isposinf().all()
    assert radii.isinf().sum() == IMAGES


def test_a_tie_has_radius_zero() -> None:
    found = margin_radius(torch.tensor([[2.0, 2.0, 1.0]]), torch.ones(3, 3))
    assert found.radius.tolist() == [0.0]
    assert found.margin.tolist() == [0.0]


def test_a_tie_has_radius_zero_even_where_the_gap_is_zero() -> None:
    assert margin_radius(torch.tensor([[2.0, 2.0]]), torch.zeros(2, 2)).radius.tolist() == [0.0]


def test_classes_without_a_gap_are_never_reached() -> None:
    assert margin_radius(torch.tensor([[2.0, 1.0]]), torch.zeros(2, 2)).radius.tolist() == [torch.inf]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_logits_that_are_not_finite_are_never_certified(bad: float, position: int) -> None:
    logits = torch.tensor([[3.0, 1.0, 0.0]])
    logits[0, position] = bad
    assert margin_radius(logits, torch.ones(3, 3)).radius.tolist() == [0.0]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -1.0])
def test_a_gap_that_is_no_bound_certifies_nothing(bad: float) -> None:
    gap = torch.ones(3, 3)
    gap[0, 2] = bad
    assert margin_radius(torch.tensor([[3.0, 1.0, 0.0]]), gap).radius.tolist() == [0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_radius_is_rounded_to_the_safe_side(dtype: torch.dtype) -> None:
    shape = (400, 3)
    logits = torch.randn(shape, generator=_generator(6), dtype=dtype)
    gap = torch.rand(3, 3, generator=_generator(7), dtype=dtype) + 0.1
    slack = torch.rand(shape, generator=_generator(8), dtype=dtype) * 0.1
    slope = torch.rand(shape, generator=_generator(9), dtype=dtype) * 1e-3
    radii = targeted_radii(logits, gap, slack=slack, slope=slope)
    for row, budget, tilt, found in zip(logits, slack, slope, radii, strict=True):
        t = int(row.argmax())
        for j in set(range(3)) - {t}:
            margin = Fraction(float(row[t])) - Fraction(float(row[j])) - Fraction(float(budget[j]))
            exact = max(Fraction(0), margin / (Fraction(float(gap[t, j])) + Fraction(float(tilt[j]))))
            assert Fraction(float(found[j])) <= exact
            # No looser than rounding explains: a subtraction loses relative to its terms, not to its result.
            assert float(exact) - float(found[j]) <= 20 * torch.finfo(dtype).eps * (10 + float(exact))


def test_budgets_are_subtracted_and_clipped_at_zero() -> None:
    logits = torch.tensor([[3.0, 1.0, 0.0]], dtype=torch.float64)
    slack = torch.tensor([[0.0, 2.5, 1.0]], dtype=torch.float64)
    slope = torch.tensor([[0.0, 1.0, 1.0]], dtype=torch.float64)
    radii = targeted_radii(logits, torch.ones(3, 3, dtype=torch.float64), slack=slack, slope=slope)
    torch.testing.assert_close(radii, torch.tensor([[torch.inf, 0.0, 1.0]], dtype=torch.float64))


def test_low_precision_logits_are_divided_in_float32() -> None:
    found = margin_radius(torch.tensor([[3.0, 1.0]], dtype=torch.bfloat16), torch.full((2, 2), 3.0))
    torch.testing.assert_close(found.radius, torch.tensor([2 / 3]))


def test_the_radius_is_differentiable_in_logits_and_gap() -> None:
    logits = torch.randn(4, 3, generator=_generator(10), dtype=torch.float64, requires_grad=True)
    gap = torch.rand(3, 3, generator=_generator(11), dtype=torch.float64) + 0.5
    gap.requires_grad_()

    def radius(logits: Tensor, gap: Tensor) -> Tensor:
        return margin_radius(logits, gap).radius

    assert torch.autograd.gradcheck(radius, (logits, gap))


def test_the_gradient_is_finite_where_the_gap_has_a_zero_diagonal() -> None:
    gap = (torch.ones(3, 3) - torch.eye(3)).requires_grad_()
    logits = torch.tensor([[3.0, 1.0, 0.0], [1.0, 1.0, 0.0]], requires_grad=True)
    margin_radius(logits, gap).radius.sum().backward()
    assert gap.grad is not None
    assert logits.grad is not None
    assert gap.grad.isfinite().all()
    assert logits.grad.isfinite().all()


def test_certified_means_correct_and_strictly_beyond_eps() -> None:
    radius = torch.tensor([0.5, 0.25, 0.25, 0.0], dtype=torch.float64)
    correct = torch.tensor([True, True, False, True])
    assert certified_at(radius, correct, 0.25).tolist() == [True, False, False, False]
    assert certified_at(radius, correct, 0.2).tolist() == [True, True, False, False]
    assert certified_at(radius, correct, 0.0).tolist() == [True, True, False, False]


def test_one_class_is_refused() -> None:
    with pytest.raises(BronetError, match="at least 2 classes, got 1"):
        margin_radius(torch.zeros(3, 1), torch.zeros(1, 1))


def test_implied_radii_are_those_of_the_largest_balls_inside() -> None:
    assert implied_radius(0.7, norm="l1", pixels=3072) == 0.7
    assert implied_radius(0.7, norm="l2", pixels=3072) == 0.7
    for pixels in (1, 2, 64, 3072):
        cube = Fraction(implied_radius(0.7, norm="linf", pixels=pixels))
        assert cube**2 * pixels <= Fraction(0.7) ** 2 <= cube**2 * pixels * (1 + Fraction(1, 10**12))
    with pytest.raises(BronetError, match="pixels must be at least 1, got 0"):
        implied_radius(0.7, norm="linf", pixels=0)
