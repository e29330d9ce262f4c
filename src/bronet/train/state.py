"""Everything a run changes, and how it is saved and restored.

Only the first process writes; all read the same file, so after a restart every process stands at the same step.
"""

from dataclasses import dataclass

from bronet.data import ImageSet, MixedBatches
from bronet.errors import BronetError
from bronet.models import CertifiableModel
from bronet.recipe.schema import Recipe
from bronet.run.folder import RunFolder
from bronet.train.average import WeightAverage
from bronet.train.checkpoint import Progress, load_checkpoint, save_checkpoint
from bronet.train.diagnosis import Snapshot
from bronet.train.kept_checkpoints import drop_old, older_checkpoints, set_aside
from bronet.train.lookahead import Lookahead
from bronet.train.processes import Processes
from bronet.train.step import TrainStep
from bronet.train.tally import Tally
from bronet.train.track import Tracker

VALIDATION_KEY = "validation_certified_accuracy"


@dataclass
class Training:
    """What a step and the end of an epoch need."""

    recipe: Recipe
    run: RunFolder
    model: CertifiableModel
    optimizer: Lookahead
    step: TrainStep
    batches: MixedBatches
    tally: Tally
    processes: Processes
    snapshot: Snapshot
    average: WeightAverage | None
    held_out: ImageSet | None
    tracker: Tracker
    saved_step: int = 0

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return self.batches.steps_per_epoch * self.recipe.train.epochs


def save(training: Training, step: int, seconds: float) -> None:
    """Write the state after `step` steps; the last few are kept, as many as the recipe says."""
    progress = Progress(step, seconds, training.tally.total())
    keep, is_main = training.recipe.train.keep_checkpoints, training.processes.is_main
    if is_main and training.saved_step != step:
        set_aside(training.run, step=training.saved_step, keep=keep)
    save_checkpoint(
        training.run.checkpoint,
        training.model,
        training.optimizer,
        progress,
        recipe=training.recipe,
        average=training.average,
        writes=is_main,
    )
    if is_main:
        drop_old(training.run, keep=keep)
    training.saved_step = step


def restore(training: Training) -> tuple[int, float]:
    """Load the newest checkpoint that can be read and return the steps taken and the seconds spent.

    A damaged one is passed over if there is an older one; one of another recipe is refused.
    """
    paths = [path for path in (training.run.checkpoint, *older_checkpoints(training.run)) if path.exists()]
    if not paths:
        return 0, 0.0
    for path in paths:
        try:
            progress = load_checkpoint(
                path,
                training.model,
                training.optimizer,
                recipe=training.recipe,
                tally=training.tally.sums,
                average=training.average,
            )
            break
        except BronetError:
            if path == paths[-1]:
                raise
    if progress.step > training.total_steps:
        raise BronetError(f"step in {path} must be at most {training.total_steps}, got {progress.step}")
    if training.processes.is_main:  # the tally is of all processes: one of them goes on with it
        training.tally.sums.copy_(progress.tally)
    training.saved_step = progress.step
    return progress.step, progress.seconds


def best_so_far(run: RunFolder) -> float:
    """Return the best validation in the log; less than any if there is none."""
    found = (entry.get(VALIDATION_KEY) for entry in run.logged())
    return max((value for value in found if isinstance(value, float)), default=-1.0)
