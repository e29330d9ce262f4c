"""A recipe's network while it learns: what a step, a check and the end of an epoch do, from the first step to the last.

The loop itself is in `bronet.training.loop`. Whether all is finite is checked only now and then, because each check
waits for the device. The weights are spoiled by then, so a copy of those at the last check is kept: the layer that is
named is where the bad batch breaks with them.
"""

import math
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from bronet.data import Batch, ImageSet, MixedBatches, prepared_ahead
from bronet.errors import BronetError
from bronet.graph.model import evaluating
from bronet.layers import LipschitzLayer
from bronet.models import CertifiableModel
from bronet.radius import margin_radius
from bronet.recipe.schema import Recipe, parse_budget
from bronet.run.folder import RunFolder, remove_leftovers
from bronet.training.average import Snapshot, WeightAverage
from bronet.training.checkpoint import Checkpoints, save_model
from bronet.training.distributed import ALONE, Processes, forward_over_all, is_sharded, part_of
from bronet.training.loop import Learner, stop_requests, training_loop
from bronet.training.optimizers import learning_rate
from bronet.training.statistics import Display, Stopwatch, Tally, validate
from bronet.training.step import TrainingForward, TrainStep, emma_budget
from bronet.training.teacher import Lessons

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

PICTURES = 16  # of a batch, for TensorBoard
DIVERGED = 10.0
"""An epoch whose loss is this many times the first epoch's has diverged; a run that learns stays far below."""
VALIDATION_KEY = "validation_certified_accuracy"


@dataclass(eq=False)
class Training(Learner):
    """A recipe's network while it learns, with all that a step and the end of an epoch change.

    `batches` arrive on the training device, where the model lies; with `fsdp` it is moved there part by part, and stays
    sharded over the processes.
    """

    recipe: Recipe
    model: CertifiableModel
    batches: MixedBatches
    run: RunFolder
    processes: Processes = ALONE
    held_out: ImageSet | None = None
    tracker: "SummaryWriter | None" = None
    fsdp: bool = False

    def __post_init__(self) -> None:
        recipe, device, processes = self.recipe, self.batches.device, self.processes
        model = self.model.train()
        self.total_steps = self.batches.steps_per_epoch * recipe.train.epochs
        self.tally = Tally(eps=parse_budget(recipe.certify.eps[0]), device=device, processes=processes)
        # What is gathered on one stream would be freed while another still reads it.
        forward = TrainingForward(model, recipe, in_parallel=not self.fsdp)
        together = forward_over_all(forward, model, processes, device=device, fsdp=self.fsdp)
        self.train_step = TrainStep(recipe, model, self.tally, forward=together)
        self.average = WeightAverage(model, decay=recipe.train.ema_decay) if recipe.train.ema_decay else None
        step, average = self.train_step, self.average
        parts = {"optimizer": step.optimizer, "lookahead": step.lookahead, "average": average}
        self.checkpoints = Checkpoints(self.run, recipe, model, parts, self.tally, processes)
        self.snapshot, self.display, self.watch, self.rate = Snapshot(model.state_dict()), Display(), Stopwatch(), 0.0
        self.teacher_accuracy = math.nan

    def fit(self, *, resume: bool = False, progress: bool = True) -> None:
        """Train the model in place to the last epoch of the recipe; a teacher, if the recipe has one, learns first.

        With `resume` training goes on from the run's newest checkpoint if there is one. With `train.ema_decay` the
        model ends with the averaged weights. Ends with `Interrupted` after SIGINT or SIGTERM, with the state saved; a
        loss or gradient that is not finite is a `BronetError`, and the last good checkpoint stays.
        """
        first_step, seconds = self.checkpoints.restore(total_steps=self.total_steps) if resume else (0, 0.0)
        self.watch = Stopwatch(seconds)
        batches, count, processes = self.batches, self.batches.steps_per_epoch, self.processes
        if processes.is_main:
            remove_leftovers(self.run)
            self.run.truncate_log(first_step // count)
        shown = progress and processes.is_main
        self.display = Display(enabled=shown, total_steps=self.total_steps, first_step=first_step)
        teacher = self.train_step.teacher
        with stop_requests(self.run.path) as stop, self.display.bar if self.display.live else nullcontext():
            if teacher is not None and first_step < self.total_steps:
                lessons = Lessons(self.recipe, batches, processes, teacher=teacher, display=self.display)
                first_batches = prepared_ahead(batches.between(0, lessons.total_steps), batches.device)
                training_loop(lessons, first_batches, steps_per_epoch=count, stop=stop, processes=processes)
                self.teacher_accuracy = lessons.finish()
            self.watch.lap()
            self.snapshot.take()
            rest = prepared_ahead(batches.between(first_step, self.total_steps), batches.device)
            training_loop(self, rest, steps_per_epoch=count, first_step=first_step, stop=stop, processes=processes)
        if self.average is not None:
            self.average.restore()
        if self.tracker is not None:
            self.tracker.close()

    def step(self, batch: Batch, number: int) -> None:
        """Take one optimiser step on a batch, with the learning rate and EMMA's budget of this step."""
        total, count = self.total_steps, self.batches.steps_per_epoch
        self.rate = learning_rate(self.recipe.optim, step=number, steps_per_epoch=count, total_steps=total)
        eps = emma_budget(self.recipe.loss, step=number, total_steps=total)
        self.train_step(batch.pixels, batch.labels, number=number, learning_rate=self.rate, emma_eps=eps)
        if self.average is not None:
            self.average.take()
        self.watch.images += self.recipe.train.batch_size
        self.batch = batch

    def check(self, step: int) -> None:
        """Check that all was finite, keep a copy of the weights, and show where the run stands."""
        bad = self.tally.first_bad_step()
        if bad is not None:
            raise self._not_finite(bad)
        self.snapshot.take()
        self.display.update(step=step, summary=self.tally.summary(), images_per_second=self.watch.speed())

    def end_epoch(self, epoch: int) -> None:
        """Log a finished epoch, validate and save if it is time, and start the statistics of the next one."""
        plan, step = self.recipe.train, epoch * self.batches.steps_per_epoch
        summary, speed = self.tally.summary(), self.watch.speed()
        times = {"images_per_second": round(speed, 1), "seconds": round(self.watch.seconds(), 3)}
        rates = {"eps": self.recipe.certify.eps[0], "lr": self.rate}
        entry = {"epoch": epoch} | summary._asdict() | rates | times | self._validated(epoch)
        self._check_progress(epoch, summary.loss)
        if self.processes.is_main:
            self.run.append_log(entry)
        self._track(epoch, entry)
        self.display.epoch(f"epoch {epoch}/{plan.epochs}  {summary}  {speed:,.0f} img/s")
        self.tally.reset()
        self.watch.lap()
        if step == self.total_steps or epoch % plan.checkpoint_every == 0:
            self.checkpoints.save(step, self.watch.seconds())

    def stop(self, step: int) -> str:
        """Save the state and say so, unless this was the last step anyway."""
        if self.checkpoints.saved_step != step:
            self.checkpoints.save(step, self.watch.seconds())
        return f"stopped after step {step} of {self.total_steps}, state saved" if step < self.total_steps else ""

    def _not_finite(self, bad: int) -> BronetError:
        self.processes.centre(self.model, over_all=False)  # the processes need not break at the same place
        self.snapshot.restore()
        batch, model = next(iter(self.batches.between(bad, bad + 1))), self.model
        eps = emma_budget(self.recipe.loss, step=bad, total_steps=self.total_steps)

        def loss() -> Tensor:
            return self.train_step.loss(*batch, model(batch.pixels), model.gap_lipschitz(), eps)

        where = find_bad_layer(model, loss, self.processes)
        return BronetError(
            f"loss and gradient must stay finite, got NaN or infinity at step {bad + 1}; it came {where}; "
            f"{self._advice()}"
        )

    def _check_progress(self, epoch: int, loss: float) -> None:
        """End the run if the loss of an epoch is far above that of the first."""
        logged = (entry.get("loss") for entry in self.run.logged()[: epoch - 1])
        first = next((value for value in logged if isinstance(value, float)), loss)
        if loss > DIVERGED * max(1.0, abs(first)):
            raise BronetError(
                f"loss must not diverge, got {loss:.3g} in epoch {epoch} after {first:.3g} in the first that was "
                f"logged; {self._advice()}"
            )

    def _advice(self) -> str:
        checkpoint = self.run.checkpoint
        kept = f"{checkpoint} holds the last good state" if checkpoint.exists() else "nothing was saved yet"
        precise = ", or set train.precision=float32" if self.recipe.train.precision != "float32" else ""
        return f"{kept}: lower optim.lr or optim.clip_norm{precise}, and start it anew (--overwrite)"

    def _validated(self, epoch: int) -> dict[str, object]:
        """Return what held-out images say, and keep the weights if they are the best so far at the first budget.

        Where weights are averaged, the average is judged and kept.
        """
        every = self.recipe.train.validate_every
        if self.held_out is None or not every or epoch % every:
            return {}
        names, budgets = self.recipe.certify.eps, [parse_budget(text) for text in self.recipe.certify.eps]
        is_main = self.processes.is_main  # it decides for all: the log that others read may be a line longer
        with self.average.in_place() if self.average is not None else nullcontext():
            accuracy, *shares = validate(self.model, self.held_out, budgets=budgets, processes=self.processes)
            earlier = (entry.get(VALIDATION_KEY) for entry in self.run.logged())
            best = max((value for value in earlier if isinstance(value, float)), default=-1.0)
            if self.processes.any(is_main and shares[0] > best):
                save_model(self.run.best_weights, self.model, recipe=self.recipe, writes=is_main)
        certified = dict(zip(names, shares, strict=True))
        return {"validation_accuracy": accuracy, VALIDATION_KEY: shares[0], "validation_certified": certified}

    @torch.no_grad()
    def _track(self, epoch: int, entry: dict[str, object]) -> None:
        """Give the tracker the numbers of an epoch, its last batch and the margins of that under the present weights.

        All processes go through the network: one process could not run a sharded network by itself.
        """
        if not self.processes.any(self.tracker is not None):
            return
        with evaluating(self.model):
            found = margin_radius(self.model(self.batch.pixels), self.model.gap_lipschitz())
        if self.tracker is not None:
            for key, value in entry.items():
                if isinstance(value, int | float) and key != "epoch":
                    self.tracker.add_scalar(key, value, epoch)
            self.tracker.add_histogram("margin", found.margin.float(), epoch)
            self.tracker.add_images("images", self.batch.pixels[:PICTURES], epoch)


def find_bad_layer(model: CertifiableModel, loss: Callable[[], Tensor], processes: Processes = ALONE) -> str:
    """Return in words where `loss` breaks with the model's present weights: forward, backward, or not yet.

    All processes of a run must call it: those of a sharded model can only go forward and backward together.
    """
    model.zero_grad(set_to_none=True)
    seen: list[str] = []

    def check_finite(name: str, module: nn.Module, inputs: object, output: Tensor) -> None:
        if not bool(output.isfinite().all()):
            seen.append(name)

    with ExitStack() as hooks:
        for name, layer in model.named_modules():
            if isinstance(layer, LipschitzLayer):
                hooks.callback(layer.register_forward_hook(partial(check_finite, name)).remove)
        value = loss()
    broken_here = bool(seen) or not bool(value.isfinite())
    if processes.any(broken_here):
        if not broken_here:
            return "in the forward pass of another process"
        return f"first in the output of layer {seen[0]}" if seen else "first in the loss itself"
    value.backward()  # type: ignore[no-untyped-call]
    norms = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            norm = part_of(parameter.grad).norm()
            norms[name] = float(processes.sum(norm.square()).sqrt() if is_sharded(parameter.grad) else norm)
    model.zero_grad(set_to_none=True)
    broken = [name for name, norm in norms.items() if not norm < float("inf")]
    if broken:
        return f"first in the gradient of {broken[-1]}"
    largest = max(norms, key=lambda name: norms[name])
    return f"suddenly; the largest gradient before was that of {largest}"
