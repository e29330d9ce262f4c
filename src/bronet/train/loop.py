"""The training loop, the only one: App. B.5 from the first step to the last, in one process or in many.

A step sets the learning rate, refreshes the norm estimates, and takes one optimiser step on one augmented
batch. All randomness follows from (seed, purpose, epoch, step), so a resumed run repeats the bits of an
uninterrupted one on a CPU. On a GPU the arithmetic may reorder sums.
"""

from typing import NamedTuple

from rich.console import Console

from bronet.data import Batch, ImageSet, MixedBatches, prepared_ahead
from bronet.models import CertifiableModel
from bronet.recipe.schema import Recipe, parse_budget
from bronet.run.folder import RunFolder, remove_leftovers
from bronet.train.average import WeightAverage
from bronet.train.diagnosis import Snapshot
from bronet.train.epoch_end import close_epoch, look, track_batch
from bronet.train.forward import forward_for
from bronet.train.interrupt import Interrupted, StopRequest, stop_requests
from bronet.train.optimizer import optimizer_for
from bronet.train.processes import Processes
from bronet.train.progress import LOOK_EVERY, Display, Pace, Stopwatch, display_for
from bronet.train.schedule import emma_budget, learning_rate
from bronet.train.state import Training, restore, save
from bronet.train.step import TrainStep
from bronet.train.tally import Tally
from bronet.train.teacher import Teacher, lessons, new_teacher
from bronet.train.track import Tracker


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
    stays sharded over the processes. With `resume` it goes on from the run's
    checkpoint if there is one. With `train.ema_decay` the model ends with the averaged weights. Ends with
    `Interrupted` after SIGINT or SIGTERM, with the state saved; a loss or gradient that is not finite is a
    `BronetError`, and the last good checkpoint stays.
    """
    processes = processes or Processes()
    forward = forward_for(model.train(), recipe, processes, device=batches.device, fsdp=fsdp)
    optimizer = optimizer_for(recipe.optim, model)
    tally = Tally(eps=parse_budget(recipe.certify.eps[0]), device=batches.device, processes=processes)
    training = Training(
        recipe=recipe,
        run=run,
        model=model,
        optimizer=optimizer,
        step=TrainStep(
            recipe,
            model,
            optimizer,
            tally,
            forward=forward,
            recorded=processes.world == 1,
            sharded_over=processes if fsdp else None,
            teacher=new_teacher(recipe, batches.device),
        ),
        batches=batches,
        tally=tally,
        processes=processes,
        snapshot=Snapshot(model),
        average=WeightAverage(model, decay=recipe.train.ema_decay) if recipe.train.ema_decay else None,
        held_out=held_out,
        tracker=tracker or Tracker(),
    )
    step, seconds = restore(training) if resume else (0, 0.0)
    first_step = step
    count, last_step = batches.steps_per_epoch, training.total_steps
    if processes.is_main:
        remove_leftovers(run)
        run.truncate_log(step // count)
    shown = progress and processes.is_main
    display = display_for(Console(), enabled=shown, total_steps=last_step, first_step=first_step)
    watch, plan = Stopwatch(seconds), recipe.train
    training.snapshot.take(step)
    teacher_accuracy = None
    with stop_requests() as stop, display:
        if training.step.teacher is not None and step < last_step:
            teacher_accuracy = _teach(training, training.step.teacher, stop, display)
        pace = Pace(watch)
        for batch in prepared_ahead(batches.between(step, last_step), batches.device):
            rate = _train_step(training, step, batch)
            step += 1
            pace.images += plan.batch_size
            epoch, rest = divmod(step, count)
            looking = rest == 0 or step % LOOK_EVERY == 0
            # Processes can only stop together, and asking costs time: alone at every step, else at every look.
            stopped_by = processes.agreed_signal(stop.signal_number) if looking or processes.world == 1 else None
            if looking or stopped_by is not None:
                look(training, step, pace, display)
            if rest == 0:
                close_epoch(training, epoch - 1, rate, pace, display)
                track_batch(training, step)
                pace = Pace(watch)
            if step == last_step or stopped_by is not None or (rest == 0 and epoch % plan.checkpoint_every == 0):
                save(training, step, watch.seconds())
            if stopped_by is not None and step < last_step:
                raise Interrupted(
                    f"stopped after step {step} of {last_step}, state saved", run=run.path, signal_number=stopped_by
                )
    if training.average is not None:
        training.average.copy_to_model()
    training.tracker.close()
    return Fitted(watch.seconds(), last_step - first_step, teacher_accuracy)


def _teach(training: Training, teacher: Teacher, stop: StopRequest, display: Display) -> float:
    """Train the teacher and return its accuracy. It is not saved: a resumed run trains it again, from the same seed."""
    processes = training.processes
    for lesson in lessons(teacher, training.recipe, training.batches, processes):
        display.before(str(lesson))
        if lesson.ends_epoch:
            display.epoch(str(lesson))
        stopped_by = processes.agreed_signal(stop.signal_number)
        if stopped_by is not None:
            message = f"stopped in epoch {lesson.epoch} of {lesson.epochs} of the teacher, which will be trained again"
            raise Interrupted(message, run=training.run.path, signal_number=stopped_by)
    return lesson.accuracy


def _train_step(training: Training, step: int, batch: Batch) -> float:
    """Take one optimiser step on a batch and return its learning rate."""
    recipe, total = training.recipe, training.total_steps
    rate = learning_rate(recipe.optim, step=step, steps_per_epoch=training.batches.steps_per_epoch, total_steps=total)
    eps = emma_budget(recipe.loss, step=step, total_steps=total)
    training.step(batch.pixels, batch.labels, number=step, learning_rate=rate, emma_eps=eps)
    if training.average is not None:
        training.average.update()
    return rate
