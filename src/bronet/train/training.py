"""A recipe's network while it learns: what a step, a check and the end of an epoch do.

The loop itself is in `bronet.train.loop`.
"""

from contextlib import nullcontext

import torch

from bronet.data import Batch, ImageSet, MixedBatches
from bronet.errors import BronetError
from bronet.models import CertifiableModel
from bronet.radius import margin_radius
from bronet.recipe.schema import Recipe, parse_budget
from bronet.run.folder import RunFolder
from bronet.train.average import WeightAverage
from bronet.train.checkpoint import Checkpoints, Stored, save_model
from bronet.train.diagnosis import Snapshot, advice_for, find_bad_layer
from bronet.train.display import Display, Pace, Stopwatch, Tracker, describe
from bronet.train.distributed import Processes, forward_over_all
from bronet.train.optimizers import learning_rate
from bronet.train.session import Interrupted
from bronet.train.statistics import Summary, Tally, validate
from bronet.train.step import TrainingForward, TrainStep, emma_budget
from bronet.train.teacher import new_teacher

DIVERGED = 10.0
"""An epoch whose loss is this many times the first epoch's has diverged; a run that learns stays far below."""
VALIDATION_KEY = "validation_certified_accuracy"


class Training:
    """A recipe's network while it learns, with all that a step and the end of an epoch change."""

    def __init__(
        self,
        recipe: Recipe,
        model: CertifiableModel,
        batches: MixedBatches,
        run: RunFolder,
        *,
        processes: Processes,
        held_out: ImageSet | None,
        tracker: Tracker,
        fsdp: bool,
    ) -> None:
        self.recipe, self.model, self.batches, self.run = recipe, model.train(), batches, run
        self.processes, self.held_out, self.tracker = processes, held_out, tracker
        self.total_steps = batches.steps_per_epoch * recipe.train.epochs
        self.tally = Tally(eps=parse_budget(recipe.certify.eps[0]), device=batches.device, processes=processes)
        # What is gathered on one stream would be freed while another still reads it.
        forward = TrainingForward(model, recipe, beside=not fsdp)
        self.train_step = TrainStep(
            recipe,
            model,
            self.tally,
            forward=forward_over_all(forward, model, processes, device=batches.device, fsdp=fsdp),
            recorded=processes.world == 1,
            sharded_over=processes if fsdp else None,
            teacher=new_teacher(recipe, batches.device),
        )
        self.average = WeightAverage(model, decay=recipe.train.ema_decay) if recipe.train.ema_decay else None
        parts: dict[str, Stored | None] = {
            "optimizer": self.train_step.optimizer,
            "lookahead": self.train_step.lookahead,
            "average": self.average,
        }
        stored = {name: part for name, part in parts.items() if part is not None}
        self.checkpoints = Checkpoints(run, recipe, model, stored, self.tally, processes)
        self.snapshot, self.display = Snapshot(model), Display()
        self.watch = Stopwatch()
        self.pace, self.rate = Pace(self.watch), 0.0

    def restore(self) -> int:
        """Go on from the run's newest checkpoint, if there is one, and return the steps it has taken."""
        step, seconds = self.checkpoints.restore(total_steps=self.total_steps)
        self.watch = Stopwatch(seconds)
        return step

    def begin(self, step: int, display: Display) -> None:
        """Get ready for the first step from here, the one after `step` steps."""
        self.display, self.pace = display, Pace(self.watch)
        self.snapshot.take(step)

    def step(self, batch: Batch, number: int) -> None:
        """Take one optimiser step on a batch, with the learning rate and EMMA's budget of this step."""
        total, count = self.total_steps, self.batches.steps_per_epoch
        self.rate = learning_rate(self.recipe.optim, step=number, steps_per_epoch=count, total_steps=total)
        eps = emma_budget(self.recipe.loss, step=number, total_steps=total)
        self.train_step(batch.pixels, batch.labels, number=number, learning_rate=self.rate, emma_eps=eps)
        if self.average is not None:
            self.average.after_step()
        self.pace.images += self.recipe.train.batch_size

    def check(self, step: int) -> None:
        """Check that all was finite, keep a copy of the weights, and show where the run stands."""
        self.check_finite()
        self.snapshot.take(step)
        self.display.update(step=step, summary=self.tally.summary(), images_per_second=self.pace.speed())

    def end_epoch(self, epoch: int) -> None:
        """Log a finished epoch, validate and save if it is time, and start the statistics of the next one."""
        plan, step = self.recipe.train, epoch * self.batches.steps_per_epoch
        summary, speed = self.tally.summary(), self.pace.speed()
        entry: dict[str, object] = {
            "epoch": epoch,
            "loss": summary.loss,
            "accuracy": summary.accuracy,
            "certified_accuracy": summary.certified_accuracy,
            "eps": self.recipe.certify.eps[0],
            "lr": self.rate,
            "images_per_second": round(speed, 1),
            "seconds": round(self.watch.seconds(), 3),
        } | self._validated(epoch)
        self._check_progress(epoch, summary)
        if self.processes.is_main:
            self.run.append_log(entry)
            self.tracker.epoch(epoch, entry)
        self.display.epoch(f"epoch {epoch}/{plan.epochs}  {describe(summary)}  {speed:,.0f} img/s")
        self.tally.reset()
        self._track_batch(epoch)
        self.pace = Pace(self.watch)
        if step == self.total_steps or epoch % plan.checkpoint_every == 0:
            self.checkpoints.save(step, self.watch.seconds())

    def stop(self, step: int, signal_number: int) -> None:
        """Save the state and end with `Interrupted`, unless this was the last step anyway."""
        if self.checkpoints.saved_step != step:
            self.checkpoints.save(step, self.watch.seconds())
        if step < self.total_steps:
            message = f"stopped after step {step} of {self.total_steps}, state saved"
            raise Interrupted(message, run=self.run.path, signal_number=signal_number)

    def finish(self) -> float:
        """Leave the model with the weights that the run ends with, and return the seconds that it took."""
        if self.average is not None:
            self.average.copy_to_model()
        self.tracker.close()
        return self.watch.seconds()

    def check_finite(self) -> None:
        """End the run if a loss or gradient was not finite; the error says where it broke."""
        bad = self.tally.first_bad_step()
        if bad is None:
            return
        self.processes.centre_locally(self.model)  # the processes need not break at the same place
        self.snapshot.restore()
        pixels, labels = next(iter(self.batches.between(bad, bad + 1)))
        eps = emma_budget(self.recipe.loss, step=bad, total_steps=self.total_steps)
        where = find_bad_layer(
            self.model, lambda: self.train_step.plain_loss(pixels, labels, emma_eps=eps), self.processes
        )
        raise BronetError(
            f"loss and gradient must stay finite, got NaN or infinity at step {bad + 1}; it came {where}; "
            f"{self._kept()}: {advice_for(self.recipe)}"
        )

    def _check_progress(self, epoch: int, summary: Summary) -> None:
        """End the run if the loss of an epoch is far above that of the first."""
        logged = (entry.get("loss") for entry in self.run.logged()[: epoch - 1])
        first = next((loss for loss in logged if isinstance(loss, float)), None)
        if first is not None and summary.loss > DIVERGED * max(1.0, abs(first)):
            raise BronetError(
                f"loss must not diverge, got {summary.loss:.3g} in epoch {epoch} after {first:.3g} in the first that "
                f"was logged; {self._kept()}: {advice_for(self.recipe)}"
            )

    def _kept(self) -> str:
        checkpoint = self.run.checkpoint
        return f"{checkpoint} holds the last good state" if checkpoint.exists() else "nothing was saved yet"

    def _validated(self, epoch: int) -> dict[str, object]:
        """Return what held-out images say, and keep the weights if they are the best so far at the first budget.

        Where weights are averaged, it is the average that is judged and kept: a run ends with it.
        """
        every = self.recipe.train.validate_every
        if self.held_out is None or not every or epoch % every:
            return {}
        names = self.recipe.certify.eps
        is_main = self.processes.is_main  # it decides for all: the log that others read may be a line longer
        with self.average.in_place() if self.average is not None else nullcontext():
            budgets = [parse_budget(text) for text in names]
            found = validate(self.model, self.held_out, budgets=budgets, processes=self.processes)
            best = (entry.get(VALIDATION_KEY) for entry in self.run.logged())
            best_so_far = max((value for value in best if isinstance(value, float)), default=-1.0)
            if self.processes.any(is_main and found.certified[0] > best_so_far):
                save_model(self.run.best_weights, self.model, recipe=self.recipe, writes=is_main)
        return {
            "validation_accuracy": found.accuracy,
            VALIDATION_KEY: found.certified[0],
            "validation_certified": dict(zip(names, found.certified, strict=True)),
        }

    @torch.no_grad()
    def _track_batch(self, epoch: int) -> None:
        """Show the tracker the last batch of an epoch and its margins under the present weights.

        All processes go through the network: one process could not run a sharded network by itself.
        """
        if not self.processes.any(self.tracker.wants_batch):
            return
        step = epoch * self.batches.steps_per_epoch
        batch = next(iter(self.batches.between(step - 1, step)))
        self.model.eval()
        found = margin_radius(self.model(batch.pixels), self.model.gap_lipschitz())
        self.model.train()
        self.tracker.batch(epoch, batch.pixels, found.margin)
