"""What a training would take on this device, measured on its first steps.

The steps are real: images are read, cropped and learned from as in the run, so that slow disks and decoders count.
Nothing is written. What the ends of epochs cost (checkpoints, held-out images) is not part of it, and an accelerator
that gets warm slows down later.
"""

import statistics
import sys
import time
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import torch

from bronet.data import Batch, prepared_ahead
from bronet.errors import BronetError
from bronet.models import build_model
from bronet.models.create import require_memory
from bronet.recipe.schema import Recipe
from bronet.run.folder import RunFolder
from bronet.training.distributed import Processes
from bronet.training.learner import Training
from bronet.training.loop import Learner, training_loop
from bronet.training.run import NUMBERS_PER_WEIGHT, RunOptions, checked_device, open_training
from bronet.training.statistics import Display
from bronet.training.teacher import Lessons

WARM_UP = {"cpu": 1, "cuda": 5}
"""Steps that are not counted: the first ones make an optimiser's state, and on a GPU record a graph."""
MEASURED_STEPS = 50
MEASURED_SECONDS = 4.0
GIB = 2**30


@dataclass(frozen=True)
class Forecast:
    """Size and time of a training; `measured` steps took `step_seconds` each on average.

    `peak_gib` is the largest memory of the GPU, or of this process on a CPU, while they were taken; None where the
    system does not tell.
    """

    parameters: int
    steps: int
    measured: int
    step_seconds: float
    teacher_seconds: float
    peak_gib: float | None

    @property
    def seconds(self) -> float:
        """The time of all steps, those of the teacher included."""
        return self.steps * self.step_seconds + self.teacher_seconds


def forecast(
    recipe: Recipe, *, device: torch.device | str = "cpu", data_dir: Path | None = None, workers: int = 0
) -> Forecast:
    """Return what training the recipe would take in one process, from a few seconds of it; nothing is written."""
    if not recipe.train.epochs:
        raise BronetError("train.epochs must be at least 1 to be timed, got 0")
    place, processes = checked_device(device, recipe, RunOptions(workers=workers)), Processes()
    batches, _ = open_training(recipe, place, processes, data_dir=data_dir, workers=workers)
    model = build_model(recipe.model, recipe.data.spec(), seed=recipe.train.seed, device=place)
    if place.type == "cpu":
        require_memory(model, copies=NUMBERS_PER_WEIGHT)
    training = Training(recipe, model, batches, RunFolder(Path()), processes)
    teacher_seconds = 0.0
    if (teacher := training.train_step.teacher) is not None:
        lessons = Lessons(recipe, batches, processes, teacher=teacher, display=Display())
        teacher_seconds = lessons.total_steps * statistics.fmean(_times(lessons, training, lessons.total_steps))
        lessons.finish()
    times = _times(training, training, training.total_steps)
    count = sum(parameter.numel() for parameter in model.parameters())
    return Forecast(count, training.total_steps, len(times), statistics.fmean(times), teacher_seconds, _peak_gib(place))


class _Timed(Learner):
    """Times the steps of another learner; `times` are those after the first few, or all if there are no others."""

    def __init__(self, learner: Learner, device: torch.device) -> None:
        self.learner, self.device = learner, device
        self.times, self.warm_up, self.last = list[float](), WARM_UP[device.type], time.perf_counter()

    def step(self, batch: Batch, number: int) -> None:
        self.learner.step(batch, number)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        if number == self.warm_up:
            self.times.clear()
        self.times.append(now - self.last)
        self.last = now


def _times(learner: Learner, training: Training, total_steps: int) -> list[float]:
    """Return the seconds of some steps of a learner on the first batches of a training."""
    device = training.batches.device
    timed, last_step = _Timed(learner, device), min(total_steps, WARM_UP[device.type] + MEASURED_STEPS)
    batches = prepared_ahead(training.batches.between(0, last_step), device)
    enough = takewhile(lambda _: sum(timed.times) < MEASURED_SECONDS, batches)
    training_loop(timed, enough, steps_per_epoch=total_steps + 1)
    return timed.times


def _peak_gib(device: torch.device) -> float | None:
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device) / GIB
    if sys.platform == "win32":
        return None
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB
