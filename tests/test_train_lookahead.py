"""Lookahead and the optimisers it wraps."""

import pytest
import torch
from torch import nn

from bronet.errors import BronetError
from bronet.recipe import OptimRecipe
from bronet.train.lookahead import Lookahead
from bronet.train.optimizer import build_optimizer


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((3, 4), (5,))]


def set_gradients(weights: list[nn.Parameter], step: int) -> None:
    for weight in weights:
        weight.grad = torch.cos(weight.detach() * (step + 1))


def test_lookahead_equals_its_definition() -> None:
    steps, alpha, rate = 3, 0.25, 0.1
    weights = parameters()
    lookahead = Lookahead(torch.optim.SGD(weights, lr=rate), steps=steps, alpha=alpha)
    fast = [w.detach().clone() for w in weights]
    slow = [w.clone() for w in fast]
    for step in range(10):
        set_gradients(weights, step)
        lookahead.step()
        fast = [f - rate * torch.cos(f * (step + 1)) for f in fast]
        if (step + 1) % steps == 0:
            slow = [s + alpha * (f - s) for s, f in zip(slow, fast, strict=True)]
            fast = [s.clone() for s in slow]
        for weight, expected in zip(weights, fast, strict=True):
            torch.testing.assert_close(weight.detach(), expected)


def test_lookahead_of_zero_steps_is_the_inner_optimiser() -> None:
    weights, plain = parameters(), parameters()
    lookahead = Lookahead(torch.optim.SGD(weights, lr=0.1), steps=0)
    sgd = torch.optim.SGD(plain, lr=0.1)
    for step in range(7):
        set_gradients(weights, step)
        set_gradients(plain, step)
        lookahead.step()
        sgd.step()
    assert lookahead.slow == []
    for weight, expected in zip(weights, plain, strict=True):
        assert torch.equal(weight, expected)


@pytest.mark.parametrize("name", ["nadam", "sgd"])
@pytest.mark.parametrize("lookahead_steps", [0, 4])
def test_restored_state_continues_with_the_same_bits(name: str, lookahead_steps: int) -> None:
    recipe = OptimRecipe(name=name, lr=0.05, weight_decay=0.01, lookahead_steps=lookahead_steps)  # type: ignore[arg-type]
    weights = parameters()
    optimizer = build_optimizer(recipe, weights)
    for step in range(6):
        set_gradients(weights, step)
        optimizer.step()
    copies = [nn.Parameter(w.detach().clone()) for w in weights]
    restored = build_optimizer(recipe, copies)
    stored = {key: tensor.clone() for key, tensor in optimizer.tensors().items()}
    restored.load_tensors(stored, steps_taken=6)
    for step in range(6, 12):
        for some, one in ((weights, optimizer), (copies, restored)):
            set_gradients(some, step)
            one.step()
    for weight, copy in zip(weights, copies, strict=True):
        assert torch.equal(weight, copy)


def test_weight_decay_is_coupled() -> None:
    """With coupled decay NAdam normalises the decay term too: a tiny one moves a weight by a whole step."""
    weight = nn.Parameter(torch.tensor([5.0]))
    optimizer = build_optimizer(OptimRecipe(lr=0.1, weight_decay=1e-3, lookahead_steps=0), [weight])
    weight.grad = torch.zeros(1)
    optimizer.step()
    assert 5.0 - weight.item() > 0.05


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"slow.0": None}, "slow.0 is missing"),
        ({"slow.0": torch.zeros(2)}, "slow.0 does not belong"),
        ({"state.9.exp_avg": torch.zeros(2)}, "state.9.exp_avg does not belong"),
        ({"state.0.exp_avg": torch.zeros(2)}, r"state.0.exp_avg must have shape \(3, 4\), got \(2,\)"),
        ({"other": torch.zeros(2)}, "other does not belong"),
    ],
)
def test_state_that_does_not_fit_is_refused_and_changes_nothing(
    change: dict[str, torch.Tensor | None], words: str
) -> None:
    weights = parameters()
    optimizer = build_optimizer(OptimRecipe(lr=0.05), weights)
    set_gradients(weights, 0)
    optimizer.step()
    before = {key: tensor.clone() for key, tensor in optimizer.tensors().items()}
    changed = {key: tensor for key, tensor in (before | change).items() if tensor is not None}
    with pytest.raises(BronetError, match=words):
        optimizer.load_tensors(changed, steps_taken=1)
    for key, tensor in optimizer.tensors().items():
        assert torch.equal(tensor, before[key])


@pytest.mark.parametrize(("steps", "alpha"), [(-1, 0.5), (6, 1.5)])
def test_lookahead_refuses_values_out_of_range(steps: int, alpha: float) -> None:
    with pytest.raises(BronetError, match=r"Lookahead's (steps|alpha) must"):
        Lookahead(torch.optim.SGD(parameters(), lr=0.1), steps=steps, alpha=alpha)
