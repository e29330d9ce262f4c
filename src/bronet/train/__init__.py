"""Training: one visible loop, its optimisers and schedules, checkpoints and the run folder."""

from bronet.train.interrupt import Interrupted
from bronet.train.run import RunOptions, train
from bronet.train.run_folder import RunFolder, open_run
from bronet.train.training_set import held_out_set, training_set
from bronet.train.weights import load_weights, read_recipe, save_weights

__all__ = [
    "Interrupted",
    "RunFolder",
    "RunOptions",
    "held_out_set",
    "load_weights",
    "open_run",
    "read_recipe",
    "save_weights",
    "train",
    "training_set",
]
