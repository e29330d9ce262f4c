"""The training loop, the only one: App. B.5 from the first step to the last, in one process or in many.

`training_loop` takes the steps of anything that learns: a recipe's network (`Training`), its teacher (`Lessons`), or a
network of an experiment. All randomness follows from (seed, purpose, epoch, step), so a resumed run repeats the bits of
an uninterrupted one on a CPU. On a GPU the arithmetic may reorder sums.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol, runtime_checkable

from rich.console import Console

from bronet.data import Batch, ImageSet, MixedBatches, prepared_ahead
from bronet.models import CertifiableModel
from bronet.recipe.schema import Recipe
from bronet.run.folder import RunFolder, remove_leftovers
from bronet.train.display import Tracker, display_for
from bronet.train.distributed import Processes
from bronet.train.session import StopRequest, stop_requests
from bronet.train.teacher import Lessons
from bronet.train.training import Training

CHECK_EVERY = 20
"""Steps between two checks of how training goes: each check waits for the device."""


@runtime_checkable
class Learner(Protocol):
    """What the loop trains. A class that inherits from it need only have the first method."""

    def step(self, batch: Batch, number: int) -> None:
        """Take a step, counted from 0, on a batch."""

    def check(self, step: int) -> None:
        """Check after `step` steps how it goes: every `CHECK_EVERY` steps, and at the end of an epoch."""
        return

    def end_epoch(self, epoch: int) -> None:
        """Close an epoch, counted from 1."""
        return

    def stop(self, step: int, signal_number: int) -> None:
        """Answer a signal that asks to stop, after `step` steps."""
        return


def training_loop(
    learner: Learner,
    batches: Iterable[Batch],
    *,
    steps_per_epoch: int,
    first_step: int = 0,
    stop: StopRequest | None = None,
    processes: Processes | None = None,
) -> None:
    """Take a step on every batch; the first of them has the number `first_step`."""
    stop, processes = stop or StopRequest(), processes or Processes()
    for step, batch in enumerate(batches, start=first_step + 1):
        learner.step(batch, step - 1)
        ends_epoch = step % steps_per_epoch == 0
        checks = ends_epoch or step % CHECK_EVERY == 0
        # Processes can only stop together, and asking all of them costs time, so several ask at a check only.
        signal_number = processes.agreed_signal(stop.signal_number) if checks or processes.world == 1 else None
        if checks or signal_number is not None:
            learner.check(step)
        if ends_epoch:
            learner.end_epoch(step // steps_per_epoch)
        if signal_number is not None:
            learner.stop(step, signal_number)


class Fitted(NamedTuple):
    """The seconds of a whole run, and how many of its steps were taken now, not before it was resumed.

    `teacher_accuracy` is the teacher's on augmented training images in its last epoch, if it was trained now.
    """

    seconds: float
    steps: int
    teacher_accuracy: float | None = None


def fit(
    recipe: Recipe,
    model: CertifiableModel,
    batches: MixedBatches,
    run: RunFolder,
    *,
    processes: Processes | None = None,
    held_out: ImageSet | None = None,
    tracker: Tracker | None = None,
    fsdp: bool = False,
    resume: bool = False,
    progress: bool = True,
) -> Fitted:
    """Train the model in place to the last epoch of the recipe and return the seconds it took.

    `batches` arrive on the training device, where the model lies; with `fsdp` it is moved there part by part, and
    stays sharded over the processes. A teacher, if the recipe has one, learns first. With `resume` training goes on
    from the run's checkpoint if there is one. With `train.ema_decay` the model ends with the averaged weights. Ends
    with `Interrupted` after SIGINT or SIGTERM, with the state saved; a loss or gradient that is not finite is a
    `BronetError`, and the last good checkpoint stays.
    """
    processes = processes or Processes()
    training = Training(
        recipe, model, batches, run, processes=processes, held_out=held_out, tracker=tracker or Tracker(), fsdp=fsdp
    )
    first_step = training.restore() if resume else 0
    count, last_step, device = batches.steps_per_epoch, training.total_steps, batches.device
    if processes.is_main:
        remove_leftovers(run)
        run.truncate_log(first_step // count)
    shown = progress and processes.is_main
    display = display_for(Console(), enabled=shown, total_steps=last_step, first_step=first_step)
    accuracy = None
    with stop_requests() as stop, display:
        teacher = training.train_step.teacher
        if teacher is not None and first_step < last_step:
            lessons = Lessons(teacher, recipe, batches, processes, display=display, run=run.path)
            first_batches = prepared_ahead(batches.between(0, lessons.total_steps), device)
            training_loop(lessons, first_batches, steps_per_epoch=count, stop=stop, processes=processes)
            accuracy = lessons.finish()
        training.begin(first_step, display)
        rest = prepared_ahead(batches.between(first_step, last_step), device)
        training_loop(training, rest, steps_per_epoch=count, first_step=first_step, stop=stop, processes=processes)
    return Fitted(training.finish(), last_step - first_step, accuracy)
