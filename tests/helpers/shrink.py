"""A recipe made small enough for one step on a CPU, with everything else as it was.

What is shrunk: widths, depths, the batch and the epochs. Kinds of layers, the loss, the optimiser and the
augmentation stay, so a step of the small recipe runs through the same code as the large one's.
"""

from dataclasses import replace

from bronet.recipe.architecture import Architecture, BRONetArchitecture, LipNeXtArchitecture, StackArchitecture
from bronet.recipe.schema import Recipe

WIDTH, DENSE_WIDTH = 4, 16
LIPCONVNET_WIDTH = 2
"""It doubles five times on the way."""
LIPNEXT_WIDTH = 64
"""More than the 3 x 4 x 4 numbers of a patch."""
BRONET_DEPTH = 4
"""Layers that keep their padding widen the image by 2 each: four of them fit ImageNet's 8 x 8 neck (16 + 8 = 24)."""
REAL_IMAGES = 2


def shrink(recipe: Recipe) -> Recipe:
    """Return the small recipe: one epoch, two real images in a batch and generated ones in proportion."""
    real = recipe.train.batch_size - recipe.data.synthetic_batch
    generated = REAL_IMAGES * recipe.data.synthetic_batch // real
    return replace(
        recipe,
        data=replace(recipe.data, synthetic_batch=generated, held_out=0),
        model=_small(recipe.model),
        optim=replace(recipe.optim, warmup_epochs=0),
        train=replace(
            recipe.train,
            epochs=1,
            batch_size=REAL_IMAGES + generated,
            power_iterations=1,
            precision="float32",
            validate_every=0,
        ),
    )


def _small(model: Architecture) -> Architecture:
    if isinstance(model, BRONetArchitecture):
        return replace(
            model,
            width=WIDTH,
            depth=min(model.depth, BRONET_DEPTH),
            dense_depth=1,
            dense_width=DENSE_WIDTH,
            regularized_depth=min(model.regularized_depth, 1),
        )
    if isinstance(model, StackArchitecture):
        return replace(
            model,
            widths=tuple(WIDTH for _ in model.widths),
            dense_widths=tuple(DENSE_WIDTH for _ in model.dense_widths),
            hidden=None if model.hidden is None else WIDTH,
            dense_hidden=None if model.dense_hidden is None else DENSE_WIDTH,
        )
    if isinstance(model, LipNeXtArchitecture):
        return replace(model, width=LIPNEXT_WIDTH, depth=2)
    return replace(model, width=LIPCONVNET_WIDTH)
