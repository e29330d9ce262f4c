"""Training: one visible loop, its optimisers and schedules, and checkpoints."""

from bronet.train.loop import Interrupted
from bronet.train.training_run import RunOptions, held_out_set, train, training_set

__all__ = [
    "Interrupted",
    "RunOptions",
    "held_out_set",
    "train",
    "training_set",
]
