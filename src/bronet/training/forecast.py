"""What a training would take on this device, measured on its first steps.

The steps are real: images are read, cropped and learned from as in the run, so that slow disks and decoders count.
Nothing is written. What the ends of epochs cost (checkpoints, held-out images) is not part of it, and an accelerator
that gets warm slows down later.
"""

import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from bronet.data import Batch, prepared_ahead
from bronet.errors import BronetError
from bronet.models import build_model
from bronet.models.create import require_memory
from bronet.recipe.schema import Recipe
from bronet.run.folder import RunFolder
from bronet.training.distributed import ALONE
from bronet.training.learner import Training
from bronet.training.loop import Learner, training_loop
from bronet.training.run import NUMBERS_PER_WEIGHT, RunOptions, checked_device, open_training
from bronet.training.statistics import Display
from bronet.training.teacher import Lessons
from bronet.wording import GIB

WARM_UP = {"cpu": 1, "cuda": 5}
"""Steps that are not counted: the first ones make an optimiser's state, and on a GPU record a graph."""
MEASURED_STEPS = 50
MEASURED_SECONDS = 4.0


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
    place, processes = checked_device(device, recipe, RunOptions(workers=workers)), ALONE
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


def _times(learner: Learner, training: Training, total_steps: int) -> list[float]:
    """Return the seconds of some steps of a learner on the first batches of a training."""
    device, times = training.batches.device, list[float]()
    warm_up = WARM_UP[device.type]

    def batches() -> Iterator[Batch]:
        """Yield a batch for each step, and time it from the wish for the batch to the wish for the next one."""
        last_step, began = min(total_steps, warm_up + MEASURED_STEPS), time.perf_counter()
        for number, batch in enumerate(prepared_ahead(training.batches.between(0, last_step), device)):
            yield batch
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            began, before = time.perf_counter(), began
            if number == warm_up:  # the steps before it count only if there are no others
                times.clear()
            times.append(began - before)
            if sum(times) >= MEASURED_SECONDS:
                return

    training_loop(learner, batches(), steps_per_epoch=total_steps + 1)
    return times


def _peak_gib(device: torch.device) -> float | None:
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device) / GIB
    if sys.platform == "win32":
        return None
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB
