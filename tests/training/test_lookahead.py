"""The optimisers, and Lookahead beside one."""

import pytest
import torch
from torch import nn

from bronet.models import build_model
from bronet.recipe import OptimRecipe, named_recipe, override
from bronet.training.average import Lookahead
from bronet.training.distributed import copy_wholes
from bronet.training.optimizers import build_optimizer
from bronet.training.statistics import Tally
from bronet.training.step import TrainStep


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((3, 4), (5,))]


def set_gradients(weights: list[nn.Parameter], step: int) -> None:
    for weight in weights:
        weight.grad = torch.cos(weight.detach() * (step + 1))


def test_lookahead_equals_its_definition() -> None:
    steps, alpha, rate = 3, 0.25, 0.1
    weights = parameters()
    sgd = torch.optim.SGD(weights, lr=rate)
    lookahead = Lookahead(weights, steps=steps, alpha=alpha)
    fast = [w.detach().clone() for w in weights]
    slow = [w.clone() for w in fast]
    for step in range(10):
        set_gradients(weights, step)
        sgd.step()
        lookahead.after_step()
        fast = [f - rate * torch.cos(f * (step + 1)) for f in fast]
        if (step + 1) % steps == 0:
            slow = [s + alpha * (f - s) for s, f in zip(slow, fast, strict=True)]
            fast = [s.clone() for s in slow]
        for weight, expected in zip(weights, fast, strict=True):
            torch.testing.assert_close(weight.detach(), expected)


@pytest.mark.parametrize("steps", [0, 4])
def test_a_step_has_a_lookahead_exactly_where_the_recipe_has_one(steps: int) -> None:
    recipe = override(named_recipe("digits/quickstart"), [f"optim.lookahead_steps={steps}"])
    model = build_model(recipe.model, recipe.data.spec())
    lookahead = TrainStep(recipe, model, Tally(eps=0.1, device="cpu")).lookahead
    assert (0 if lookahead is None else lookahead.steps) == steps


@pytest.mark.parametrize("name", ["nadam", "sgd"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_restored_state_continues_with_the_same_bits(name: str, momentum: float) -> None:
    recipe = OptimRecipe(name=name, lr=0.05, weight_decay=0.01, momentum=momentum)  # type: ignore[arg-type]
    weights = parameters()
    optimizer, lookahead = (build_optimizer(recipe, weights), Lookahead(weights, steps=4, alpha=0.5))
    for step in range(6):
        set_gradients(weights, step)
        optimizer.prepare(0.05)
        optimizer.step()
        lookahead.after_step()
    copies = [nn.Parameter(w.detach().clone()) for w in weights]
    restored, other = build_optimizer(recipe, copies), Lookahead(copies, steps=4, alpha=0.5)
    for one, stored in ((restored, optimizer), (other, lookahead)):
        copy_wholes(stored.tensors(), into=one.tensors())
    for step in range(6, 12):
        for some, moves, follows in ((weights, optimizer, lookahead), (copies, restored, other)):
            set_gradients(some, step)
            moves.prepare(0.1 / step)
            moves.step()
            follows.after_step()
    for weight, copy in zip(weights, copies, strict=True):
        assert torch.equal(weight, copy)


@pytest.mark.parametrize("name", ["nadam", "sgd"])
def test_state_has_its_names_before_the_first_step(name: str) -> None:
    weights = parameters()
    optimizer = build_optimizer(OptimRecipe(name=name, lr=0.05), weights)  # type: ignore[arg-type]
    before = {key: tensor.shape for key, tensor in optimizer.tensors().items()}
    set_gradients(weights, 0)
    optimizer.prepare(0.05)
    optimizer.step()
    assert {key: tensor.shape for key, tensor in optimizer.tensors().items()} == before


def test_the_state_of_all_counts_the_steps_though_a_parameter_has_no_gradient() -> None:
    weights = parameters()
    optimizer = build_optimizer(OptimRecipe(lr=0.05), weights)
    for _ in range(3):
        weights[1].grad = torch.ones_like(weights[1])
        optimizer.prepare(0.05)
        optimizer.step()
    assert optimizer.tensors()["step"].item() == 3


def test_weight_decay_is_coupled() -> None:
    """With coupled decay NAdam normalises the decay term too: a tiny one moves a weight by a whole step."""
    weight = nn.Parameter(torch.tensor([5.0]))
    optimizer = build_optimizer(OptimRecipe(lr=0.1, weight_decay=1e-3), [weight])
    weight.grad = torch.zeros(1)
    optimizer.prepare(0.1)
    optimizer.step()
    assert 5.0 - weight.item() > 0.05
