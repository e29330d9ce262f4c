"""Training: one visible loop, its optimisers and schedules, and checkpoints."""

from bronet.train.interrupt import Interrupted
from bronet.train.run import RunOptions, train
from bronet.train.training_set import held_out_set, training_set

__all__ = [
    "Interrupted",
    "RunOptions",
    "held_out_set",
    "train",
    "training_set",
]
