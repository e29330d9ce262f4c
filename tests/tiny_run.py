"""A run folder trained for a moment on the digits: something real to certify, verify and attack."""

from pathlib import Path

from bronet.recipe import named_recipe, override
from bronet.train import train

SETTINGS = (
    "model.width=8",
    "model.depth=1",
    "model.dense_depth=1",
    "model.dense_width=16",
    "data.held_out=797",
    "train.epochs=3",
    "optim.warmup_epochs=0",
)


def train_tiny_run(folder: Path) -> Path:
    """Train and return the folder: a second or two."""
    train(override(named_recipe("digits/quickstart"), list(SETTINGS)), folder, device="cpu", command="test")
    return folder
