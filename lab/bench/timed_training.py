"""Training for a given time instead of a given number of epochs: what an equal-budget comparison needs.

It takes the recipe's own steps (`bronet.training.step`) in the one loop (`bronet.training.loop`). Only the schedule
differs: the learning rate follows half a cosine of the time used, and EMMA's budget grows over the first half of it. So
a fast layer takes more steps. Two runs of the same seconds need not take the same steps; with a number of steps instead
of seconds they do.
"""

import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from bronet.data import Batch, ImageSet, MixedBatches, ResidentStream
from bronet.errors import BronetError
from bronet.models import CertifiableModel
from bronet.recipe.schema import Recipe, parse_budget
from bronet.training.loop import Learner, training_loop
from bronet.training.statistics import Tally
from bronet.training.step import TrainStep

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
    batches = MixedBatches(recipe, ResidentStream(images), device=images.images.device)
    training = _TimedTraining(model, recipe, budget)
    training_loop(training, training.within_budget(batches), steps_per_epoch=batches.steps_per_epoch)
    seconds = training.seconds()
    training.check_finite()
    epochs = training.steps * recipe.train.batch_size / len(images)
    return Spent(training.steps, epochs, seconds, training.loss())


class _TimedTraining(Learner):
    """A recipe's network while it learns within a budget."""

    def __init__(self, model: CertifiableModel, recipe: Recipe, budget: Budget) -> None:
        self.recipe, self.budget, self.device = recipe, budget, next(model.parameters()).device
        self.tally = Tally(eps=parse_budget(recipe.certify.eps[0]), device=self.device)
        self.train_step = TrainStep(recipe, model.train(), self.tally)
        self.steps, self.used, self.last_loss = 0, 0.0, math.nan
        self.start = time.perf_counter()

    def within_budget(self, batches: MixedBatches) -> Iterator[Batch]:
        """Yield batches as long as the budget is not used."""
        coming = batches.between(0, sys.maxsize)
        while True:
            if self.device.type == "cuda" and self.steps % _LOOK_EVERY == 0:
                torch.cuda.synchronize(self.device)
            self.used = self.budget.used(steps=self.steps, seconds=time.perf_counter() - self.start)
            if self.steps and self.used >= 1:
                return
            yield next(coming)

    def step(self, batch: Batch, number: int) -> None:
        optim, loss = self.recipe.optim, self.recipe.loss
        first, last = parse_budget(loss.emma_start_eps), parse_budget(loss.emma_eps)
        ramp = min(1.0, self.used / loss.emma_ramp) if loss.emma_ramp > 0 else 1.0
        rate = optim.lr * (1 + math.cos(math.pi * min(1.0, self.used))) / 2
        eps = first + (last - first) * ramp
        self.train_step(batch.pixels, batch.labels, number=number, learning_rate=rate, emma_eps=eps)
        self.steps = number + 1

    def end_epoch(self, epoch: int) -> None:
        self.check_finite()
        self.last_loss = self.tally.summary().loss
        self.tally.reset()

    def check_finite(self) -> None:
        if self.tally.first_bad_step() is not None:
            raise BronetError(f"loss must stay finite, got NaN or infinity within {self.steps} steps; lower optim.lr")

    def seconds(self) -> float:
        """Return the seconds since training began, the device's work included."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - self.start

    def loss(self) -> float:
        """Return the mean loss of the last epoch that was begun."""
        images = self.tally.total()[3]
        return self.tally.summary().loss if images else self.last_loss
