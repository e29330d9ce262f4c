"""The learning rate and the EMMA budget over training."""

import math

import pytest

from bronet.recipe import LossRecipe, OptimRecipe, parse_budget
from bronet.training.optimizers import learning_rate
from bronet.training.step import emma_budget

STEPS_PER_EPOCH = 10
EPOCHS = 100
TOTAL = STEPS_PER_EPOCH * EPOCHS


def rate(recipe: OptimRecipe, step: int) -> float:
    return learning_rate(recipe, step=step, steps_per_epoch=STEPS_PER_EPOCH, total_steps=TOTAL)


def test_warm_up_grows_linearly_to_the_peak() -> None:
    recipe = OptimRecipe(lr=0.5, warmup_epochs=20)
    warmup = 20 * STEPS_PER_EPOCH
    assert rate(recipe, 0) == 0.5 / warmup
    assert rate(recipe, warmup // 2 - 1) == 0.25
    assert rate(recipe, warmup - 1) == 0.5


def test_cosine_falls_from_the_peak_to_zero() -> None:
    recipe = OptimRecipe(lr=0.5, warmup_epochs=20)
    assert rate(recipe, 200) == 0.5
    assert rate(recipe, 600) == pytest.approx(0.25)
    assert rate(recipe, TOTAL - 1) == pytest.approx(0.5 * (1 + math.cos(math.pi * 799 / 800)) / 2)
    assert rate(recipe, TOTAL) == 0
    falling = [rate(recipe, step) for step in range(200, TOTAL)]
    assert falling == sorted(falling, reverse=True)


def test_linear_warms_up_and_falls_in_a_straight_line_to_zero() -> None:
    recipe = OptimRecipe(lr=0.5, schedule="linear", warmup_epochs=20)
    warm_up = OptimRecipe(lr=0.5, warmup_epochs=20)
    assert [rate(recipe, step) for step in range(200)] == [rate(warm_up, step) for step in range(200)]
    assert [rate(recipe, step) for step in (199, 200, 600, 800, TOTAL)] == [0.5, 0.5, 0.25, 0.125, 0]
    assert rate(recipe, TOTAL - 1) == pytest.approx(0.5 / 800)
    assert rate(OptimRecipe(lr=0.5, schedule="linear", warmup_epochs=EPOCHS), TOTAL - 1) == 0.5


def test_cosine_without_warm_up_starts_at_the_peak() -> None:
    assert rate(OptimRecipe(lr=0.5), 0) == 0.5


def test_a_run_of_warm_up_alone_never_divides_by_zero() -> None:
    assert rate(OptimRecipe(lr=0.5, warmup_epochs=EPOCHS), TOTAL - 1) == 0.5


def test_milestones_multiply_the_rate_at_their_epochs() -> None:
    recipe = OptimRecipe(lr=0.1, schedule="milestones", milestones=(50, 75), milestone_factor=0.5)
    assert [rate(recipe, step) for step in (0, 499, 500, 749, 750, 999)] == [0.1, 0.1, 0.05, 0.05, 0.025, 0.025]


def test_emma_grows_linearly_over_the_first_part_of_training() -> None:
    recipe = LossRecipe(emma=True, emma_eps="108/255", emma_start_eps="3.6/255", emma_ramp=0.5)
    start, target = 3.6 / 255, 108 / 255
    assert emma_budget(recipe, step=0, total_steps=TOTAL) == start
    assert emma_budget(recipe, step=250, total_steps=TOTAL) == pytest.approx((start + target) / 2)
    assert emma_budget(recipe, step=500, total_steps=TOTAL) == target
    assert emma_budget(recipe, step=999, total_steps=TOTAL) == target


def test_emma_without_ramp_has_its_target_at_once() -> None:
    recipe = LossRecipe(emma=True, emma_ramp=0.0)
    assert emma_budget(recipe, step=0, total_steps=TOTAL) == parse_budget(recipe.emma_eps)
