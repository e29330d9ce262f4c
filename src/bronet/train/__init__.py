"""Training: one visible loop, its optimisers and schedules, and checkpoints."""

from bronet.train.images import held_out_set, training_set
from bronet.train.session import Interrupted
from bronet.train.training_run import RunOptions, train

__all__ = [
    "Interrupted",
    "RunOptions",
    "held_out_set",
    "train",
    "training_set",
]
