"""The named recipes: what the paper trained (App. B.5 and Tables 1, 9, 16), and small runs for a CPU.

A name is "data set/model". Where the text and the published code disagree, the recipe follows the code and
the comment says so; every choice can be overridden. Differences from the paper: ImageNet's random resizing
(224 to 288) is not described here, and the small recipes are our own.
"""

import math
from dataclasses import replace

from bronet.errors import BronetError
from bronet.recipe.architecture import NAMED, LipConvNetArchitecture
from bronet.recipe.reader import nearest
from bronet.recipe.schema import (
    CertifyRecipe,
    DataRecipe,
    LossRecipe,
    OptimRecipe,
    Recipe,
    TrainRecipe,
)

LIPCONVNET_DEPTHS = (5, 10, 15, 20)  # Table 16
LIPCONVNET_WIDTHS = (32, 48, 64)
LIPCONVNET_OFFSET = 2 * math.sqrt(2)  # App. C: xi of every LipConvNet experiment
LIPCONVNET_LOSS_SCALE = 0.25  # published code only
CROP_PADDING = {"cifar10": 4, "cifar100": 4, "tiny-imagenet": 8}


def recipe_names() -> tuple[str, ...]:
    """Return every name `named_recipe` knows, in the order of the paper's tables."""
    return tuple(_CATALOG)


def named_recipe(name: str) -> Recipe:
    """Return the recipe of that name; an unknown name is refused with the nearest known one."""
    if name not in _CATALOG:
        raise BronetError(f"unknown recipe {name!r}; did you mean {nearest(name, _CATALOG)!r}?")
    return _CATALOG[name]


def _bronet(dataset: str, model: str, short_name: str) -> Recipe:
    """Table 1 and 9: NAdam with Lookahead, LA on EMMA-adjusted logits, 800 epochs."""
    return Recipe(
        name=f"{dataset}/{short_name}",
        data=DataRecipe(name=dataset, crop_padding=CROP_PADDING[dataset], flip=True, randaugment_probability=0.5),
        model=NAMED[model],
        loss=LossRecipe(name="la", emma=True, emma_eps="108/255"),
        optim=OptimRecipe(name="nadam", lr=1e-3, weight_decay=4e-5, warmup_epochs=20),
        train=TrainRecipe(epochs=800, batch_size=256),
    )


def _imagenet() -> Recipe:
    """Table 1: a larger batch, a smaller EMMA budget, no weight decay, RandAugment on every image."""
    return Recipe(
        name="imagenet/bronet",
        data=DataRecipe(name="imagenet", flip=True, randaugment_probability=1.0),
        model=NAMED["bronet-imagenet"],
        loss=LossRecipe(name="la", emma=True, emma_eps="72/255"),
        optim=OptimRecipe(name="nadam", lr=1e-3, weight_decay=0.0, warmup_epochs=20),
        train=TrainRecipe(epochs=400, batch_size=1024),
    )


def _lipconvnet(dataset: str, depth: int, width: int) -> Recipe:
    """Tables 4, 13 to 16: SGD, LA without EMMA; drops at 100 and 150 as in the code (text: 50 and 150)."""
    architecture = LipConvNetArchitecture(depth=depth, width=width)
    if dataset == "cifar10":
        architecture = replace(architecture, head="bro")  # the published default there
    return Recipe(
        name=f"{dataset}/lipconvnet-{depth}-{width}",
        data=DataRecipe(name=dataset, crop_padding=CROP_PADDING[dataset], flip=True),
        model=architecture,
        loss=LossRecipe(name="la", offset=LIPCONVNET_OFFSET, scale=LIPCONVNET_LOSS_SCALE),
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


def _digits() -> Recipe:
    """The quick start: 8 x 8 digits, about a minute on two CPU cores.

    Chosen on 250 held-out training images. The digits are centred, so shifting them costs more than it gives.
    """
    return Recipe(
        name="digits/quickstart",
        data=DataRecipe(name="digits"),
        model=NAMED["bronet-digits"],
        loss=LossRecipe(name="la", emma=True, emma_eps="3/5", emma_start_eps="3/50"),
        optim=OptimRecipe(name="nadam", lr=5e-3, warmup_epochs=2),
        train=TrainRecipe(epochs=40, batch_size=64),
        certify=CertifyRecipe(eps=("1/4", "1/2", "3/4", "1")),
    )


def _small() -> Recipe:
    """A BRONet of width 64 and depth 4 for a few minutes on a CPU."""
    return Recipe(
        name="cifar10/bronet-small",
        data=DataRecipe(name="cifar10", crop_padding=4, flip=True),
        model=NAMED["bronet-small"],
        loss=LossRecipe(name="la", emma=True, emma_eps="36/255"),
        optim=OptimRecipe(name="nadam", lr=2e-3, warmup_epochs=1),
        train=TrainRecipe(epochs=6, batch_size=256),
    )


_CATALOG: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in [
        _digits(),
        _small(),
        *(_bronet(dataset, model, model) for dataset in ("cifar10", "cifar100") for model in ("bronet-m", "bronet-l")),
        _bronet("tiny-imagenet", "bronet-tiny", "bronet"),
        _imagenet(),
        *(
            _lipconvnet(dataset, depth, width)
            for dataset in CROP_PADDING
            for depth in LIPCONVNET_DEPTHS
            for width in LIPCONVNET_WIDTHS
        ),
    ]
}
