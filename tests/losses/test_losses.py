"""Losses as theorems: limits, gradients, and the identities of App. C."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bronet import losses
from bronet.errors import BronetError
from bronet.losses import certificate_risk, checked_logits
from bronet.radius import margin_radius

IMAGES, CLASSES = 12, 4
DOUBLE_TOLERANCE = {"rtol": 100 * torch.finfo(torch.float64).eps, "atol": 100 * torch.finfo(torch.float64).eps}


@pytest.fixture
def logits() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(IMAGES, CLASSES, generator=generator, dtype=torch.float64)


@pytest.fixture
def labels() -> Tensor:
    return torch.arange(IMAGES) % CLASSES


@pytest.fixture
def gap() -> Tensor:
    rows = torch.randn(CLASSES, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return (rows[:, None] - rows[None, :]).norm(dim=2)


def test_logit_annealing_is_cross_entropy_without_its_three_parameters(logits: Tensor, labels: Tensor) -> None:
    annealed = losses.logit_annealing(logits, labels, temperature=1.0, offset=0.0, beta=0.0)
    torch.testing.assert_close(annealed, losses.cross_entropy(logits, labels), **DOUBLE_TOLERANCE)


def test_logit_annealing_is_the_formula_of_section_5(logits: Tensor, labels: Tensor) -> None:
    temperature, offset, beta = 0.6, 1.5, 3.0
    truth = F.one_hot(labels, CLASSES)
    p = ((logits - offset * truth) / temperature).softmax(dim=1)[truth.bool()]
    expected = (-temperature * (1 - p) ** beta * p.log()).mean()
    found = losses.logit_annealing(logits, labels, temperature=temperature, offset=offset, beta=beta)
    torch.testing.assert_close(found, expected, **DOUBLE_TOLERANCE)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0, 5.0])
def test_logit_annealing_gradient_matches_finite_differences(logits: Tensor, labels: Tensor, beta: float) -> None:
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: losses.logit_annealing(z, labels, beta=beta), logits)


def test_the_loss_of_drawn_labels_is_the_mean_over_labels(logits: Tensor, labels: Tensor, gap: Tensor) -> None:
    """Label by label and image by image, with EMMA, whose budget depends on the label."""
    probabilities = (3 * logits.flip(0)).softmax(dim=1)
    expected = torch.zeros((), dtype=torch.float64)
    for image in range(IMAGES):
        for label in range(CLASSES):
            alone, truth = logits[image : image + 1], torch.tensor([label])
            loss = losses.logit_annealing(losses.emma(alone, truth, gap, eps=0.3), truth)
            expected += probabilities[image, label] * loss / IMAGES
    drawn = losses.drawn_labels(logits, probabilities)
    adjusted = losses.emma(drawn.logits, drawn.labels, gap, eps=0.3)
    found = losses.logit_annealing(adjusted, drawn.labels, weights=drawn.weights)
    torch.testing.assert_close(found, expected, **DOUBLE_TOLERANCE)


def test_certain_labels_are_drawn_as_they_are(logits: Tensor, labels: Tensor) -> None:
    drawn = losses.drawn_labels(logits, F.one_hot(labels, CLASSES).double())
    found = losses.logit_annealing(drawn.logits, drawn.labels, weights=drawn.weights)
    torch.testing.assert_close(found, losses.logit_annealing(logits, labels), **DOUBLE_TOLERANCE)


def test_of_many_classes_the_ten_likeliest_labels_are_drawn() -> None:
    probabilities = torch.arange(1.0, 31.0, dtype=torch.float64).expand(2, -1) / 465
    drawn = losses.drawn_labels(torch.zeros(2, 30, dtype=torch.float64), probabilities)
    assert drawn.logits.shape == (20, 30)
    assert set(drawn.labels.tolist()) == set(range(20, 30))
    torch.testing.assert_close(drawn.weights.sum(), torch.ones((), dtype=torch.float64), **DOUBLE_TOLERANCE)
    heaviest = drawn.weights[drawn.labels == 29]
    torch.testing.assert_close(heaviest, torch.full((2,), 30 / 255 / 2, dtype=torch.float64), **DOUBLE_TOLERANCE)


def _gradient_norm_at(margin: float, dtype: torch.dtype, beta: float) -> float:
    logits = torch.tensor([[margin, 0.0, 0.0]], dtype=dtype, requires_grad=True)
    losses.logit_annealing(logits, torch.tensor([0]), beta=beta).backward()
    assert logits.grad is not None
    return float(logits.grad.norm())


@pytest.mark.parametrize("beta", [0.5, 1.0, 5.0])
def test_logit_annealing_gradient_vanishes_as_p_tends_to_one(beta: float) -> None:
    norms = [_gradient_norm_at(margin, torch.float64, beta) for margin in (4.0, 6.0, 8.0, 12.0, 20.0)]
    assert norms == sorted(norms, reverse=True)
    assert norms[-1] < 1e-9 * norms[0]


def test_annealing_vanishes_faster_than_cross_entropy() -> None:
    # Both decay exponentially in the margin; beta = 5 multiplies the rate by six.
    annealed, plain = (
        _gradient_norm_at(6.0, torch.float64, beta) / _gradient_norm_at(5.0, torch.float64, beta) for beta in (5.0, 0.0)
    )
    assert annealed == pytest.approx(plain**6, rel=0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("beta", [0.0, 0.5, 5.0])
@pytest.mark.parametrize("margin", [-1e4, -200.0, 0.0, 200.0, 1e4])
def test_logit_annealing_stays_finite_where_p_is_zero_or_one(dtype: torch.dtype, beta: float, margin: float) -> None:
    logits = torch.tensor([[margin, 0.0, 0.0]], dtype=dtype, requires_grad=True)
    loss = losses.logit_annealing(logits, torch.tensor([0]), beta=beta)
    loss.backward()
    assert logits.grad is not None
    assert loss.isfinite()
    assert logits.grad.isfinite().all()


def test_a_hopeless_image_is_pulled_with_full_strength() -> None:
    # As p_t -> 0 the loss is T * (distance of the soft margin), with slope -1 in the true logit.
    logits = torch.tensor([[-1e3, 0.0]], requires_grad=True)
    losses.logit_annealing(logits, torch.tensor([0])).backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[-1.0, 1.0]]))


def test_cross_entropy_is_minus_log_softmax(logits: Tensor, labels: Tensor) -> None:
    expected = (logits.exp().sum(dim=1).log() - logits[torch.arange(IMAGES), labels]).mean()
    torch.testing.assert_close(losses.cross_entropy(logits, labels), expected, **DOUBLE_TOLERANCE)


def test_logit_margin_is_positive_exactly_where_correct(logits: Tensor, labels: Tensor) -> None:
    correct = logits.argmax(dim=1) == labels
    assert correct.any()
    assert not correct.all()
    assert torch.equal(losses.logit_margin(logits, labels) > 0, correct)


def test_ramp_is_one_at_no_margin_zero_at_tau_and_linear_between() -> None:
    margins = {-3.0: 1.0, 0.0: 1.0, 0.5: 0.75, 1.0: 0.5, 2.0: 0.0, 7.0: 0.0}
    for margin, expected in margins.items():
        logits = torch.tensor([[margin + 1.0, 1.0, 0.0]])
        if margin < 0:
            logits = torch.tensor([[1.0 + margin, 1.0, margin]])
        assert float(losses.ramp(logits, torch.tensor([0]), tau=2.0)) == expected


def test_certificate_risk_is_ramp_risk_minus_one(logits: Tensor, labels: Tensor) -> None:
    """Prop. 4."""
    tau = float(losses.logit_margin(logits, labels).max())
    assert tau > 0
    risk = certificate_risk(logits, labels, gamma=1 / tau)
    torch.testing.assert_close(risk, losses.ramp(logits, labels, tau=tau) - 1, **DOUBLE_TOLERANCE)


@pytest.mark.parametrize("gamma", [0.1, 0.5, 2.0])
def test_certificate_risk_of_any_gamma_differs_by_the_mean_positive_margin(
    logits: Tensor, labels: Tensor, gamma: float
) -> None:
    """The identity in the proof of Prop. 4, for any tau no margin exceeds; M_+ is a mean, not a sum."""
    margin = losses.logit_margin(logits, labels)
    tau = 1.5 * float(margin.max())
    mean_positive = margin[margin > 0].sum() / IMAGES
    expected = losses.ramp(logits, labels, tau=tau) - 1 - (gamma - 1 / tau) * mean_positive
    torch.testing.assert_close(certificate_risk(logits, labels, gamma=gamma), expected, **DOUBLE_TOLERANCE)


def test_certificate_regularization_of_the_text_rewards_the_margin(logits: Tensor, labels: Tensor) -> None:
    found = losses.certificate_regularization(logits, labels, gamma=0.5)
    reward = losses.logit_margin(logits, labels).clamp(min=0).mean()
    torch.testing.assert_close(found, losses.cross_entropy(logits, labels) - 0.5 * reward, **DOUBLE_TOLERANCE)


def test_certificate_regularization_of_the_code_rewards_the_radius_of_correct_images(
    logits: Tensor, labels: Tensor, gap: Tensor
) -> None:
    found = losses.certificate_regularization_radius(logits, labels, gap, gamma=0.5)
    prediction, _, radius = margin_radius(logits, gap)
    reward = radius[prediction == labels].sum() / IMAGES
    assert reward > 0
    torch.testing.assert_close(found, losses.cross_entropy(logits, labels) - 0.5 * reward, **DOUBLE_TOLERANCE)


def test_certificate_regularization_of_a_plain_head_is_the_margin_over_root_two() -> None:
    logits = torch.tensor([[2.0, 0.5, 0.0]], dtype=torch.float64)
    lipschitz = 3.0
    gap = torch.full((3, 3), math.sqrt(2) * lipschitz, dtype=torch.float64)
    labels = torch.tensor([0])
    reward = losses.cross_entropy(logits, labels) - losses.certificate_regularization_radius(
        logits, labels, gap, gamma=1.0
    )
    assert float(reward) == pytest.approx(1.5 / (math.sqrt(2) * lipschitz), rel=1e-12)


@pytest.mark.parametrize(
    ("shape", "label_shape", "dtype", "message"),
    [
        ((3,), (3,), torch.int64, "logits must have shape"),
        ((3, 1), (3,), torch.int64, "logits must have shape"),
        ((0, 3), (0,), torch.int64, "logits must have shape"),
        ((3, 4), (2,), torch.int64, "labels must be int64 of shape"),
        ((3, 4), (3,), torch.int32, "labels must be int64 of shape"),
        ((3, 4), (3, 4), torch.int64, "labels must be int64 of shape"),
    ],
)
def test_shapes_and_dtypes_are_checked(
    shape: tuple[int, ...], label_shape: tuple[int, ...], dtype: torch.dtype, message: str
) -> None:
    with pytest.raises(BronetError, match=message):
        checked_logits(torch.zeros(shape), torch.zeros(label_shape, dtype=dtype))


@pytest.mark.parametrize("label", [-1, 4])
def test_labels_out_of_range_are_refused(label: int) -> None:
    with pytest.raises(BronetError, match=r"labels must lie in 0 \.\. 3"):
        losses.logit_annealing(torch.zeros(2, 4), torch.tensor([0, label]))


def test_parameters_out_of_range_are_refused(logits: Tensor, labels: Tensor) -> None:
    with pytest.raises(BronetError, match="temperature must be positive, got 0"):
        losses.logit_annealing(logits, labels, temperature=0.0)
    with pytest.raises(BronetError, match="beta must be at least 0, got -1"):
        losses.logit_annealing(logits, labels, beta=-1.0)
    with pytest.raises(BronetError, match="tau must be positive, got nan"):
        losses.ramp(logits, labels, tau=math.nan)
