"""EMMA: its formula, what its gradient sees, and its limits."""

import pytest
import torch
from torch import Tensor

from bronet import losses
from bronet.errors import BronetError

LOGITS = torch.tensor([[2.0, 1.0, 1.9, -3.0]], dtype=torch.float64)
GAP = torch.tensor(
    [[0.0, 1.0, 2.0, 0.5], [1.0, 0.0, 1.0, 1.0], [2.0, 1.0, 0.0, 1.0], [0.5, 1.0, 1.0, 0.0]], dtype=torch.float64
)
EPS = 0.4


def test_each_wrong_logit_gets_its_clipped_share_of_the_budget() -> None:
    # Class 0 is true. Budgets 0.4, 0.8, 0.2; margins 1, 0.1, 5; so the shares are 1, 1/8, 1.
    adjusted = losses.emma(LOGITS, torch.tensor([0]), GAP, eps=EPS)
    expected = torch.tensor([[2.0, 1.4, 2.0, -2.8]], dtype=torch.float64)
    torch.testing.assert_close(adjusted, expected)


def test_a_class_that_already_wins_gets_the_least_share() -> None:
    # Class 1 is true and loses against 0 and 2: share 0.01 of budget 0.4. Class 3 is beaten by 4: share 1.
    adjusted = losses.emma(LOGITS, torch.tensor([1]), GAP, eps=EPS)
    expected = torch.tensor([[2.004, 1.0, 1.904, -2.6]], dtype=torch.float64)
    torch.testing.assert_close(adjusted, expected)


def test_an_attackable_class_is_raised_to_a_tie_and_no_further() -> None:
    # Budgets 4, 8, 2 against margins 1, 0.1, 5: the last class stays out of reach.
    adjusted = losses.emma(LOGITS, torch.tensor([0]), 10 * GAP, eps=EPS)
    torch.testing.assert_close(adjusted, torch.tensor([[2.0, 2.0, 2.0, -1.0]], dtype=torch.float64))


def test_gradient_flows_through_the_gap_and_stops_at_the_share() -> None:
    logits = LOGITS.clone().requires_grad_()
    gap = GAP.clone().requires_grad_()
    adjusted = losses.emma(logits, torch.tensor([0]), gap, eps=EPS)
    weights = torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=torch.float64)
    (adjusted * weights).sum().backward()
    torch.testing.assert_close(logits.grad, weights)
    expected = torch.zeros_like(GAP)
    expected[0] = EPS * torch.tensor([0.0, 1.0, 1 / 8, 1.0]) * weights[0]
    torch.testing.assert_close(gap.grad, expected)


def test_no_budget_changes_nothing() -> None:
    assert torch.equal(losses.emma(LOGITS, torch.tensor([0]), GAP, eps=0.0), LOGITS)


def test_the_diagonal_of_the_gap_is_ignored() -> None:
    adjusted = losses.emma(LOGITS, torch.tensor([0]), GAP + 7 * torch.eye(4), eps=EPS)
    torch.testing.assert_close(adjusted, losses.emma(LOGITS, torch.tensor([0]), GAP, eps=EPS))


def test_emma_raises_the_loss_that_follows() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20, 4, generator=generator, dtype=torch.float64)
    labels = torch.arange(20) % 4
    adjusted = losses.emma(logits, labels, GAP, eps=EPS)
    for loss in (losses.cross_entropy, losses.logit_annealing):
        assert loss(adjusted, labels) > loss(logits, labels)


def test_gradient_is_finite_for_low_precision_logits() -> None:
    logits = LOGITS.to(torch.bfloat16).requires_grad_()
    gap = GAP.to(torch.float32).requires_grad_()
    losses.logit_annealing(losses.emma(logits, torch.tensor([0]), gap, eps=EPS), torch.tensor([0])).backward()
    for gradient in (logits.grad, gap.grad):
        assert isinstance(gradient, Tensor)
        assert gradient.isfinite().all()


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(BronetError, match=r"eps must be at least 0, got -0\.1"):
        losses.emma(LOGITS, torch.tensor([0]), GAP, eps=-0.1)
