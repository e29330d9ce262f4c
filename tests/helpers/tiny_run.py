"""Runs of a moment on the digits: a folder to certify, verify and attack, and the parts of a training to look at."""

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from bronet.data import ImageSet, MixedBatches, ResidentStream
from bronet.models import CertifiableModel, build_model
from bronet.recipe import Recipe, dataset_spec, named_recipe, override
from bronet.run.weights import FORMAT_KEY
from bronet.training import train_recipe
from bronet.training.checkpoint import CHECKSUM, checksum
from bronet.training.run import split_images

MODEL = ("model.width=8", "model.depth=1", "model.dense_depth=1", "model.dense_width=16")
SETTINGS = (*MODEL, "data.held_out=797", "train.epochs=3", "optim.warmup_epochs=0")
STEPS_PER_EPOCH = 5
EPOCHS = 3


@cache
def _trained() -> Path:
    """Return a run of a second or two, trained once for all tests of this process."""
    home = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    recipe = override(named_recipe("digits/quickstart"), list(SETTINGS))
    return train_recipe(recipe, home / "run", device="cpu", progress=False, command="test").path


def train_tiny_run(folder: Path) -> Path:
    """Return the folder with a copy of a trained run."""
    return shutil.copytree(_trained(), folder, dirs_exist_ok=True)


def tiny_recipe(*settings: str) -> Recipe:
    """A BRONet of one block on 200 digits: five steps an epoch, milliseconds a step."""
    return override(
        named_recipe("digits/quickstart"),
        [
            *MODEL,
            "data.held_out=1097",
            "train.batch_size=40",
            f"train.epochs={EPOCHS}",
            "optim.warmup_epochs=1",
            *settings,
        ],
    )


def build(recipe: Recipe) -> CertifiableModel:
    return build_model(recipe.model, dataset_spec(recipe.data.name), seed=recipe.train.seed)


def digits(recipe: Recipe) -> MixedBatches:
    return MixedBatches(recipe, ResidentStream(split_digits(recipe)[0]), device=torch.device("cpu"))


def split_digits(recipe: Recipe) -> tuple[ImageSet, ImageSet]:
    """Return the images to learn from and those held out."""
    kept, held = split_images(recipe.data)
    assert isinstance(kept, ImageSet)
    assert isinstance(held, ImageSet)
    return kept, held


def header_of(checkpoint: Path) -> dict[str, str]:
    """Return what a checkpoint says besides its tensors."""
    with safe_open(checkpoint, framework="pt") as file:
        header: dict[str, str] = json.loads(file.metadata()[FORMAT_KEY])
    return header


def rewrite(checkpoint: Path, tensors: dict[str, torch.Tensor], header: dict[str, str]) -> None:
    """Write a checkpoint whose checksum is right."""
    sealed = header | {CHECKSUM: checksum(tensors, header)}
    save_file(tensors, checkpoint, metadata={FORMAT_KEY: json.dumps(sealed)})
