"""Training for a given time instead of a given number of epochs: what an equal-budget comparison needs.

It takes the recipe's own steps (`bronet.train.step`); only the schedule differs: the learning rate follows half a
cosine of the time used, and EMMA's budget grows over the first half of it. A fast layer so takes more steps. Two runs
of the same seconds need not take the same steps; with a number of steps instead of seconds they do.
"""

import math
import time
from dataclasses import dataclass

import torch

from bronet.data import ImageSet, augment, epoch_order, generator_for, steps_per_epoch
from bronet.errors import BronetError
from bronet.models import CertifiableModel
from bronet.recipe.schema import Recipe, parse_budget
from bronet.train.optimizer import optimizer_for
from bronet.train.step import TrainStep
from bronet.train.tally import Tally

# Steps between two looks at the clock on a GPU, where each look waits for the device.
_LOOK_EVERY = 8


@dataclass(frozen=True)
class Budget:
    """How long to train: seconds of wall-clock time, or a number of steps."""

    seconds: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        given = [value for value in (self.seconds, self.steps) if value is not None]
        if len(given) != 1 or not 0 < given[0] < math.inf:
            raise BronetError(
                f"budget must be positive and finite seconds or steps, one of them, got {self.seconds}, {self.steps}"
            )

    def used(self, *, steps: int, seconds: float) -> float:
        """Return the share of the budget that is used, from 0 to 1 and beyond."""
        return steps / self.steps if self.steps is not None else seconds / (self.seconds or 1.0)


@dataclass(frozen=True)
class Spent:
    """What training took, and its last mean loss."""

    steps: int
    epochs: float
    seconds: float
    loss: float


def train_for(model: CertifiableModel, recipe: Recipe, images: ImageSet, budget: Budget) -> Spent:
    """Train the model in place until the budget is used; images lie on the model's device."""
    device = images.images.device
    tally = Tally(eps=parse_budget(recipe.certify.eps[0]), device=device)
    step = TrainStep(recipe, model.train(), optimizer_for(recipe.optim, model), tally)
    taken, epoch, used = 0, 0, 0.0
    batch = recipe.train.batch_size
    count = steps_per_epoch(len(images), batch)
    start = time.perf_counter()
    while used < 1:
        tally.reset()
        order = epoch_order(len(images), seed=recipe.train.seed, epoch=epoch)
        for chosen in order[: count * batch].split(batch):
            _one_step(step, recipe, images, chosen, number=taken, used=used)
            taken += 1
            if device.type == "cuda" and taken % _LOOK_EVERY == 0:
                torch.cuda.synchronize(device)
            used = budget.used(steps=taken, seconds=time.perf_counter() - start)
            if used >= 1:
                break
        epoch += 1
        if tally.first_bad_step() is not None:
            raise BronetError(f"loss must stay finite, got NaN or infinity within {taken} steps; lower optim.lr")
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - start
    epochs = taken * recipe.train.batch_size / len(images)
    return Spent(taken, epochs, seconds, tally.summary().loss)


def _one_step(
    step: TrainStep, recipe: Recipe, images: ImageSet, chosen: torch.Tensor, *, number: int, used: float
) -> None:
    device = images.images.device
    chosen = chosen.to(device)
    generator = generator_for(recipe.train.seed, "augment", number, device=device)
    stored = augment(images.images[chosen], generator, recipe.data)
    first, last = parse_budget(recipe.loss.emma_start_eps), parse_budget(recipe.loss.emma_eps)
    ramp = min(1.0, used / recipe.loss.emma_ramp) if recipe.loss.emma_ramp > 0 else 1.0
    rate = recipe.optim.lr * (1 + math.cos(math.pi * min(1.0, used))) / 2
    step(
        stored.float() / images.scale,
        images.labels[chosen],
        number=number,
        learning_rate=rate,
        emma_eps=first + (last - first) * ramp,
    )
