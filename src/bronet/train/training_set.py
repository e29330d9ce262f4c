"""Which images a run trains on, and which it keeps for tuning.

The held-out images depend on the data set and their number only, not on the seed of a run, so that runs with
other seeds are tuned on the same images. The test set is never part of either.
"""

from pathlib import Path

from bronet.data import ImageSet, load_dataset, stratified_split
from bronet.recipe.schema import DataRecipe

HELD_OUT_SEED = 0


def training_set(recipe: DataRecipe, *, data_dir: Path | None = None) -> ImageSet:
    """Return the training images without the held-out ones, on the CPU."""
    whole = load_dataset(recipe.name, "train", data_dir=data_dir)
    if recipe.held_out == 0:
        return whole
    kept, _ = stratified_split(whole.labels, recipe.held_out, HELD_OUT_SEED)
    return whole.subset(kept)


def held_out_set(recipe: DataRecipe, *, data_dir: Path | None = None) -> ImageSet:
    """Return the held-out training images, on the CPU; the recipe must hold some out."""
    whole = load_dataset(recipe.name, "train", data_dir=data_dir)
    _, held = stratified_split(whole.labels, recipe.held_out, HELD_OUT_SEED)
    return whole.subset(held)
