"""Which images a run trains on, and which it keeps for tuning.

The held-out images depend on the data set and their number only, not on the seed of a run, so that runs with
other seeds are tuned on the same images. The test set is never part of either.
"""

from pathlib import Path

import torch

from bronet.data import (
    DecodedStream,
    FileSet,
    ImageSet,
    ImageStream,
    MixedBatches,
    ResidentStream,
    open_images,
    open_synthetic,
    stratified_split,
)
from bronet.recipe.schema import DataRecipe, Recipe
from bronet.train.distributed import Processes

HELD_OUT_SEED = 0


def training_set(recipe: DataRecipe, *, data_dir: Path | None = None) -> ImageSet | FileSet:
    """Return the training images without the held-out ones: in memory, or as files where they are decoded later."""
    return _parts(recipe, data_dir)[0]


def held_out_set(recipe: DataRecipe, *, data_dir: Path | None = None) -> ImageSet:
    """Return the held-out training images, decoded, on the CPU; the recipe must hold some out."""
    whole = open_images(recipe, "train", data_dir=data_dir)
    _, held = stratified_split(whole.labels, recipe.held_out, HELD_OUT_SEED)
    return _decoded(whole.subset(held), recipe)


def open_training(
    recipe: Recipe,
    *,
    device: torch.device,
    processes: Processes,
    data_dir: Path | None = None,
    workers: int = 0,
) -> tuple[MixedBatches, ImageSet | None]:
    """Return the batches of a run, and the held-out images if the recipe validates on them.

    Images in memory go to the device as a whole; files are decoded by `workers` processes.
    """
    data = recipe.data
    kept, held = _parts(data, data_dir)
    real = _stream(kept, recipe, device, workers, seed=recipe.train.seed)
    synthetic = None
    if data.synthetic:
        generated = open_synthetic(data, kept.classes, data_dir=data_dir)
        synthetic = _stream(generated, recipe, device, workers, seed=recipe.train.seed + 1)
    batches = MixedBatches(recipe, real, synthetic, device=device, rank=processes.rank, world=processes.world)
    wanted = held is not None and recipe.train.validate_every > 0
    return batches, _decoded(held, data).to(device) if wanted and held is not None else None


def _parts(recipe: DataRecipe, data_dir: Path | None) -> tuple[ImageSet | FileSet, ImageSet | FileSet | None]:
    whole = open_images(recipe, "train", data_dir=data_dir)
    if recipe.held_out == 0:
        return whole, None
    kept, held = stratified_split(whole.labels, recipe.held_out, HELD_OUT_SEED)
    return whole.subset(kept), whole.subset(held)


def _decoded(found: ImageSet | FileSet, recipe: DataRecipe) -> ImageSet:
    return found.decoded(recipe.spec(), resized=bool(recipe.resize)) if isinstance(found, FileSet) else found


def _stream(found: ImageSet | FileSet, recipe: Recipe, device: torch.device, workers: int, *, seed: int) -> ImageStream:
    if isinstance(found, ImageSet):
        return ResidentStream(found.to(device))
    data = recipe.data
    return DecodedStream(
        found, data.spec(), resize=data.resize, flip=data.flip, seed=seed, workers=workers, device=device
    )
