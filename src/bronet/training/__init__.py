"""Training: one visible loop, its optimisers and schedules, and checkpoints."""

from bronet.training.loop import Interrupted
from bronet.training.run import RunOptions, train

__all__ = ["Interrupted", "RunOptions", "train"]
