"""What happens between steps: looking for numbers that are not finite, and at the end of an epoch the log, the
validation on held-out images, and what a tracker wants to know.
"""

from contextlib import nullcontext

import torch

from bronet.errors import BronetError
from bronet.radius import margin_radius
from bronet.recipe.schema import parse_budget
from bronet.train.checkpoint import save_model
from bronet.train.diagnosis import advice_for, find_bad_layer
from bronet.train.objective import objective
from bronet.train.progress import Display, Pace, describe
from bronet.train.schedule import emma_budget
from bronet.train.state import VALIDATION_KEY, Training, best_so_far
from bronet.train.tally import Summary
from bronet.train.validation import validate

DIVERGED = 10.0
"""An epoch whose loss is this many times the first epoch's has diverged; a run that learns stays far below."""


def look(training: Training, step: int, pace: Pace, display: Display) -> None:
    """Stop if something was not finite, else keep a copy of the weights and show where the run stands."""
    bad = training.tally.first_bad_step()
    if bad is not None:
        raise BronetError(
            f"loss and gradient must stay finite, got NaN or infinity at step {bad + 1}; it came "
            f"{_where(training, bad)}; {_kept(training)}: {advice_for(training.recipe)}"
        )
    training.snapshot.take(step)
    display.update(step=step, summary=training.tally.summary(), images_per_second=pace.speed())


def close_epoch(training: Training, epoch: int, rate: float, pace: Pace, display: Display) -> None:
    """Log a finished epoch, validate if it is time, and start the tally of the next one."""
    summary, speed = training.tally.summary(), pace.speed()
    entry: dict[str, object] = {
        "epoch": epoch + 1,
        "loss": summary.loss,
        "accuracy": summary.accuracy,
        "certified_accuracy": summary.certified_accuracy,
        "eps": training.recipe.certify.eps[0],
        "lr": rate,
        "images_per_second": round(speed, 1),
        "seconds": round(pace.watch.seconds(), 3),
    } | _validated(training, epoch)
    _stop_if_diverged(training, epoch, summary)
    if training.processes.is_main:
        training.run.append_log(entry)
        training.tracker.epoch(epoch + 1, entry)
    display.epoch(f"epoch {epoch + 1}/{training.recipe.train.epochs}  {describe(summary)}  {speed:,.0f} img/s")
    training.tally.reset()


@torch.no_grad()
def track_batch(training: Training, step: int) -> None:
    """Show the tracker the batch of the step before `step` and its margins under the present weights.

    All processes go through the network: of a sharded one, none could do so alone.
    """
    if not training.processes.any(training.tracker.wants_batch):
        return
    batch = next(training.batches.between(step - 1, step))
    training.model.eval()
    found = margin_radius(training.model(batch.pixels), training.model.gap_lipschitz())
    training.model.train()
    training.tracker.batch(step // training.batches.steps_per_epoch, batch.pixels, found.margin)


def _validated(training: Training, epoch: int) -> dict[str, object]:
    """Return what held-out images say, and keep the weights if they are the best so far at the first budget.

    Where weights are averaged, it is the average that is judged and kept: a run ends with it.
    """
    every = training.recipe.train.validate_every
    if training.held_out is None or not every or (epoch + 1) % every:
        return {}
    names = training.recipe.certify.eps
    budgets = [parse_budget(text) for text in names]
    is_main = training.processes.is_main  # it decides for all: the log that others read may be a line longer
    with training.average.in_place() if training.average is not None else nullcontext():
        found = validate(training.model, training.held_out, budgets=budgets, processes=training.processes)
        if training.processes.any(is_main and found.certified[0] > best_so_far(training.run)):
            save_model(training.run.best_weights, training.model, recipe=training.recipe, writes=is_main)
    return {
        "validation_accuracy": found.accuracy,
        VALIDATION_KEY: found.certified[0],
        "validation_certified": dict(zip(names, found.certified, strict=True)),
    }


def _stop_if_diverged(training: Training, epoch: int, summary: Summary) -> None:
    logged = (entry.get("loss") for entry in training.run.logged()[:epoch])
    first = next((loss for loss in logged if isinstance(loss, float)), None)
    if first is not None and summary.loss > DIVERGED * max(1.0, abs(first)):
        raise BronetError(
            f"loss must not diverge, got {summary.loss:.3g} in epoch {epoch + 1} after {first:.3g} in the first that "
            f"was logged; {_kept(training)}: {advice_for(training.recipe)}"
        )


def _where(training: Training, step: int) -> str:
    """Return where the bad step breaks, seen from the weights at the last look."""
    training.processes.centre_alone(training.model)  # the processes need not break at the same place
    training.snapshot.restore()
    batch = next(training.batches.between(step, step + 1))
    recipe, model = training.recipe, training.model
    eps = emma_budget(recipe.loss, step=step, total_steps=training.total_steps)
    targets = training.step.targets(batch.pixels, batch.labels)

    def loss() -> torch.Tensor:
        gap = model.gap_lipschitz()
        return objective(recipe.loss, model(batch.pixels), batch.labels, gap, emma_eps=eps, targets=targets)

    return find_bad_layer(model, loss, training.processes)


def _kept(training: Training) -> str:
    checkpoint = training.run.checkpoint
    return f"{checkpoint} holds the last good state" if checkpoint.exists() else "nothing was saved yet"
