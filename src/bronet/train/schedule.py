"""What changes over training: the learning rate and the EMMA budget (App. B.5).

Pure functions of the step, so that resuming needs no schedule state. `step` counts from 0; the value is the
one to use in that step.
"""

import math

from bronet.recipe.schema import LossRecipe, OptimRecipe, parse_budget


def learning_rate(recipe: OptimRecipe, *, step: int, steps_per_epoch: int, total_steps: int) -> float:
    """Return the learning rate of a step.

    Guaranteed, cosine: grows linearly over the warm-up and reaches `lr` in its last step, then follows half a
    cosine that would be 0 at `total_steps`; linear: the same warm-up, then a straight line to the same end.
    Guaranteed, milestones: `lr` times `milestone_factor` to the number of milestones (in epochs) passed.
    """
    if recipe.schedule == "milestones":
        passed = sum(step >= milestone * steps_per_epoch for milestone in recipe.milestones)
        return recipe.lr * recipe.milestone_factor**passed
    warmup = recipe.warmup_epochs * steps_per_epoch
    if step < warmup:
        return recipe.lr * (step + 1) / warmup
    done = (step - warmup) / max(1, total_steps - warmup)
    if recipe.schedule == "linear":
        return recipe.lr * (1 - done)
    return recipe.lr * (1 + math.cos(math.pi * done)) / 2


def emma_budget(recipe: LossRecipe, *, step: int, total_steps: int) -> float:
    """Return EMMA's eps: linear from its start to its target over the first `emma_ramp` of training."""
    start, target = parse_budget(recipe.emma_start_eps), parse_budget(recipe.emma_eps)
    ramp_steps = recipe.emma_ramp * total_steps
    if step >= ramp_steps:
        return target
    return start + (target - start) * step / ramp_steps
