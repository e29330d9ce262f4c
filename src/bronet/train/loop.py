"""The training loop, the only one: App. B.5 from the first step to the last.

A step sets the learning rate, refreshes the norm estimates, and takes one optimiser step on one augmented
batch. All randomness follows from (seed, purpose, epoch, step), so a resumed run repeats the bits of an
uninterrupted one on a CPU. On a GPU the arithmetic may reorder sums.
"""

import shlex
from dataclasses import dataclass

from jaxtyping import Float, Int, UInt8
from rich.console import Console
from torch import Tensor

from bronet.data import ImageSet, augment, epoch_batches, generator_for, steps_per_epoch
from bronet.errors import BronetError
from bronet.models import CertifiableModel
from bronet.recipe.schema import Recipe, parse_budget
from bronet.train.checkpoint import Progress, load_checkpoint, save_checkpoint
from bronet.train.interrupt import Interrupted, stop_requests
from bronet.train.lookahead import Lookahead
from bronet.train.optimizer import build_optimizer
from bronet.train.progress import Display, Pace, Stopwatch, describe, display_for
from bronet.train.run_folder import RunFolder
from bronet.train.schedule import emma_budget, learning_rate
from bronet.train.step import TrainStep
from bronet.train.tally import Tally

LOOK_EVERY = 20
"""Steps between two looks at the tally: each look waits for the device."""


@dataclass
class Training:
    """Everything a step needs; only `model`, `optimizer` and `tally` change."""

    recipe: Recipe
    run: RunFolder
    model: CertifiableModel
    optimizer: Lookahead
    images: ImageSet
    tally: Tally
    step: TrainStep
    steps_per_epoch: int
    total_steps: int


def fit(
    recipe: Recipe,
    model: CertifiableModel,
    images: ImageSet,
    run: RunFolder,
    *,
    resume: bool = False,
    progress: bool = True,
) -> float:
    """Train the model in place to the last epoch of the recipe and return the seconds it took.

    `images` lie on the training device, with the model. With `resume` it goes on from the run's checkpoint if
    there is one. Ends with `Interrupted` after SIGINT or SIGTERM, with the state saved; a loss or gradient
    that is not finite is a `BronetError`, and the last good checkpoint stays.
    """
    count = steps_per_epoch(len(images), recipe.train.batch_size)
    optimizer = build_optimizer(recipe.optim, model.train().parameters())
    tally = Tally(eps=parse_budget(recipe.certify.eps[0]), device=images.images.device)
    training = Training(
        recipe=recipe,
        run=run,
        model=model,
        optimizer=optimizer,
        images=images,
        tally=tally,
        step=TrainStep(recipe, model, optimizer, tally),
        steps_per_epoch=count,
        total_steps=count * recipe.train.epochs,
    )
    step, seconds = _restore(training) if resume and run.checkpoint.exists() else (0, 0.0)
    run.truncate_log(step // count)
    display = display_for(Console(), enabled=progress, total_steps=training.total_steps, first_step=step)
    watch, plan = Stopwatch(seconds), recipe.train
    with stop_requests() as stop, display:
        for epoch in range(step // count, plan.epochs):
            pace = Pace(watch)
            for _, chosen in epoch_batches(
                len(images), plan.batch_size, seed=plan.seed, epoch=epoch, start_step=step % count
            ):
                rate = _train_step(training, step, chosen)
                step += 1
                pace.images += plan.batch_size
                if step % LOOK_EVERY == 0:
                    _look(training, step, pace, display)
                if stop.signal_number is not None:
                    break
            _look(training, step, pace, display)
            stopped_by = stop.signal_number
            if step % count == 0:
                _close_epoch(training, epoch, rate, pace, display)
            last = step == training.total_steps
            if last or stopped_by is not None or (epoch + 1) % plan.checkpoint_every == 0:
                _save(training, step, watch)
            if stopped_by is not None and not last:
                raise Interrupted(
                    f"stopped after step {step} of {training.total_steps}, state saved; "
                    f"resume with: bronet train --resume {shlex.quote(str(run.path))}",
                    signal_number=stopped_by,
                )
    return watch.seconds()


def _look(training: Training, step: int, pace: Pace, display: Display) -> None:
    """Stop if something was not finite, else show where the run stands."""
    bad = training.tally.first_bad_step()
    if bad is not None:
        checkpoint = training.run.checkpoint
        kept = f"{checkpoint} holds the last good state" if checkpoint.exists() else "nothing was saved yet"
        raise BronetError(
            f"loss and gradient must stay finite, got NaN or infinity at step {bad + 1}; {kept}: "
            "lower optim.lr or optim.clip_norm, or set train.precision=float32"
        )
    display.update(step=step, summary=training.tally.summary(), images_per_second=pace.speed())


def _close_epoch(training: Training, epoch: int, rate: float, pace: Pace, display: Display) -> None:
    """Log a finished epoch and start the tally of the next one."""
    summary, speed = training.tally.summary(), pace.speed()
    entry = {
        "epoch": epoch + 1,
        "loss": summary.loss,
        "accuracy": summary.accuracy,
        "certified_accuracy": summary.certified_accuracy,
        "eps": training.recipe.certify.eps[0],
        "lr": rate,
        "images_per_second": round(speed, 1),
        "seconds": round(pace.watch.seconds(), 3),
    }
    training.run.append_log(entry)
    epochs = training.recipe.train.epochs
    display.epoch(f"epoch {epoch + 1}/{epochs}  {describe(summary)}  {speed:,.0f} img/s")
    training.tally.reset()


def _train_step(training: Training, step: int, chosen: Int[Tensor, "b"]) -> float:
    """Take one optimiser step on the images `chosen` and return its learning rate."""
    recipe = training.recipe
    rate = learning_rate(
        recipe.optim, step=step, steps_per_epoch=training.steps_per_epoch, total_steps=training.total_steps
    )
    eps = emma_budget(recipe.loss, step=step, total_steps=training.total_steps)
    pixels, labels = _batch(training, step, chosen)
    training.step(pixels, labels, number=step, learning_rate=rate, emma_eps=eps)
    return rate


def _batch(
    training: Training, step: int, chosen: Int[Tensor, "b"]
) -> tuple[Float[Tensor, "b c h w"], Int[Tensor, "b"]]:
    """Return augmented pixels in [0, 1] and labels; augmentation draws depend on (seed, step) only."""
    data, images = training.recipe.data, training.images
    device = images.images.device
    chosen = chosen.to(device, non_blocking=True)
    stored: UInt8[Tensor, "b c h w"] = augment(
        images.images[chosen],
        generator_for(training.recipe.train.seed, "augment", step, device=device),
        crop_padding=data.crop_padding,
        flip=data.flip,
        randaugment_probability=data.randaugment_probability,
        scale=images.scale,
    )
    return stored.float() / images.scale, images.labels[chosen]


def _save(training: Training, step: int, watch: Stopwatch) -> None:
    progress = Progress(step, watch.seconds(), training.tally.sums)
    save_checkpoint(training.run.checkpoint, training.model, training.optimizer, progress, recipe=training.recipe)


def _restore(training: Training) -> tuple[int, float]:
    """Load the run's checkpoint and return the steps taken and the seconds spent."""
    tally, path = training.tally, training.run.checkpoint
    progress = load_checkpoint(path, training.model, training.optimizer, recipe=training.recipe, tally=tally.sums)
    if progress.step > training.total_steps:
        raise BronetError(f"step in {path} must be at most {training.total_steps}, got {progress.step}")
    tally.sums.copy_(progress.tally)
    return progress.step, progress.seconds
