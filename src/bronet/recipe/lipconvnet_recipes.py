"""The recipes of LipConvNet: Tables 4, 6, 13 to 16 of the paper (App. B.8 and D).

LA by default; "-ce" is cross-entropy, "-cr" cross-entropy with certificate regularisation. Table 6 does not name its
network: we read LipConvNet-10-32. The offset of the LA ablations is the text's 2, elsewhere its 2 sqrt(2).
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from bronet.recipe.architecture import LipConvNetArchitecture
from bronet.recipe.bronet_recipes import CROP_PADDING
from bronet.recipe.schema import DataRecipe, LossRecipe, OptimRecipe, Recipe, TrainRecipe
from bronet.recipe.sweep import Sweep

DEPTHS = (5, 10, 15, 20)
WIDTHS = (32, 48, 64)
OFFSET = 2 * math.sqrt(2)
LOSS_SCALE = 0.25  # published code only
RIVALS = ("soc", "lot")
BETAS = ("1", "3", "5", "7")
TEMPERATURES = ("0.25", "0.5", "0.75", "1.0")
OFFSETS = ("0.5", "1.0", "1.5", "2.0", "2.5", "3.0")


def lipconvnet_recipes() -> Iterator[Recipe]:
    """Yield every recipe: all depths and widths, the other losses, and the other layers at depth 10."""
    for dataset in CROP_PADDING:
        for depth in DEPTHS:
            for width in WIDTHS:
                recipe = _lipconvnet(dataset, depth, width)
                yield recipe
                if depth == 10:
                    yield _with_cr(recipe)
                    if width == WIDTHS[0]:
                        yield replace(recipe, name=f"{recipe.name}-ce", loss=LossRecipe(name="ce"))
                    for kind in RIVALS:
                        rival = replace(_lipconvnet(dataset, depth, width, kind), name=f"{recipe.name}-{kind}")
                        yield rival
                        yield _with_cr(rival)


def lipconvnet_sweeps() -> Iterator[Sweep]:
    """Yield Table 14 (beta) and the grid of temperature and offset of App. D.6, all of LipConvNet-10-32."""
    recipe = _lipconvnet("cifar100", 10, 32)
    loss = replace(recipe.loss, offset=2.0)
    yield Sweep(base=replace(recipe, name="cifar100/la-beta", loss=loss), axes=(("loss.beta", BETAS),))
    axes = (("loss.temperature", TEMPERATURES), ("loss.offset", OFFSETS))
    yield Sweep(base=replace(recipe, name="cifar100/la-grid", loss=loss), axes=axes)


def _lipconvnet(dataset: str, depth: int, width: int, backbone: str = "bro") -> Recipe:
    """SGD, LA without EMMA; drops at 100 and 150 as in the published code (text: 50 and 150)."""
    architecture = LipConvNetArchitecture(depth=depth, width=width, backbone=backbone)
    if dataset == "cifar10":
        architecture = replace(architecture, head="bro")  # the published default there
    return Recipe(
        name=f"{dataset}/lipconvnet-{depth}-{width}",
        data=DataRecipe(name=dataset, crop_padding=CROP_PADDING[dataset], flip=True),
        model=architecture,
        loss=LossRecipe(name="la", offset=OFFSET, scale=LOSS_SCALE),
        optim=OptimRecipe(
            name="sgd",
            lr=0.1,
            weight_decay=3e-4,
            clip_norm=None,
            lookahead_steps=0,
            schedule="milestones",
            milestones=(100, 150),
        ),
        train=TrainRecipe(epochs=200, batch_size=512),
    )


def _with_cr(recipe: Recipe) -> Recipe:
    """Cross-entropy with CR of weight 0.5 (App. C.3), on the radius as in the published code."""
    return replace(recipe, name=f"{recipe.name}-cr", loss=LossRecipe(name="ce+cr", gamma=0.5))
