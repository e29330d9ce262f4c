"""Training: one visible loop, its optimisers and schedules, and checkpoints."""

from bronet.train.loop import Interrupted
from bronet.train.training_run import RunOptions, train

__all__ = ["Interrupted", "RunOptions", "train"]
