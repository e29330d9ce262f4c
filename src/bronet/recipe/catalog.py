"""The recipes with names, "data set/network": the paper's networks, small ones, and short schedules ("-fast").

Where the paper's text and its published code disagree, a recipe follows the code, and the function that builds it says
so. The recipes of the paper's further rows (rivals, other losses, sweeps) are in the repository's `lab`.
"""

import math
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from bronet.errors import BronetError
from bronet.recipe.architecture import LIPCONVNET_DEPTHS, LIPCONVNET_WIDTHS, NAMED
from bronet.recipe.schema import CertifyRecipe, DataRecipe, LossRecipe, OptimRecipe, Recipe, TrainRecipe
from bronet.recipe.text import override, read_recipe
from bronet.records import nearest

CROP_PADDING = {"cifar10": 4, "cifar100": 4, "tiny-imagenet": 8}
CIFAR = ("cifar10", "cifar100")
GENERATED = {"cifar10": "edm-cifar10-4m.npz", "cifar100": "edm-cifar100-1m.npz"}
FAST_OF = ("cifar10/bronet-m", "cifar10/bronet-l", "cifar100/bronet-m", "cifar100/bronet-l", "tiny-imagenet/bronet")
SUFFIXES = frozenset({".yaml", ".yml"})
"""Suffixes of recipe files; anything else is the name of a recipe."""


def recipe_names() -> tuple[str, ...]:
    """Return the names of all recipes: small ones first, short schedules last."""
    return tuple(_BUILDERS)


@cache
def named_recipe(name: str) -> Recipe:
    """Return the recipe of that name, or an error that suggests the nearest one."""
    if name not in _BUILDERS:
        raise BronetError(f"unknown recipe {name!r}; did you mean {nearest(name, _BUILDERS)!r}?")
    return _BUILDERS[name]()


def find_recipe(text: str) -> Recipe:
    """Return the recipe that a text names: one of the package by its name, or a YAML file."""
    path = Path(text)
    return read_recipe(path, advice="give a YAML file or a name") if path.suffix in SUFFIXES else named_recipe(text)


def _digits() -> Recipe:
    """The quick start: 8 x 8 digits, about a minute on two CPU cores.

    Chosen on 250 held-out training images. The digits are centred, so shifting them does not help.
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


def _small_lipnext() -> Recipe:
    """A LipNeXt of width 64 and depth 8 for a few minutes on a CPU."""
    return override(_small(), ["name=cifar10/lipnext-small", "model=lipnext-small", "optim.name=manifold"])


def _bronet(dataset: str, name: str, model: str) -> Recipe:
    """Tables 1 and 9 (App. B.3, B.5): NAdam with Lookahead, LA on EMMA-adjusted logits, 800 epochs."""
    return Recipe(
        name=f"{dataset}/{name}",
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
        data=DataRecipe(name="imagenet", flip=True, randaugment_probability=1.0, resize=(224, 288)),
        model=NAMED["bronet-imagenet"],
        loss=LossRecipe(name="la", emma=True, emma_eps="72/255"),
        optim=OptimRecipe(name="nadam", lr=1e-3, weight_decay=0.0, warmup_epochs=20),
        train=TrainRecipe(epochs=400, batch_size=1024),
    )


def _edm(dataset: str) -> Recipe:
    """Table 2: 256 real and 768 generated images in a batch, no weight decay."""
    data = [f"data.synthetic={GENERATED[dataset]}", "data.synthetic_batch=768", "train.batch_size=1024"]
    return override(_bronet(dataset, "bronet-l-edm", "bronet-l"), [*data, "optim.weight_decay=0"])


def _edm2() -> Recipe:
    """Table 2: 512 real and 512 generated images in a batch, with RandAugment on both, as in the published code."""
    data = ["data.synthetic=edm2-imagenet-2m", "data.synthetic_batch=512", "data.synthetic_crop_padding=0"]
    return override(_imagenet(), ["name=imagenet/bronet-edm2", *data, "data.synthetic_randaugment_probability=1"])


def _lipconvnet(dataset: str, depth: int, width: int) -> Recipe:
    """Tables 4, 15 and 16 (App. B.8 and D): SGD, LA without EMMA; drops at 100 and 150 as in the published code.

    The text has them at 50 and 150, and does not scale the loss. The head is LLN, as in the text; the published default
    on CIFAR-10, an orthogonal layer, is `model.head: bro`.
    """
    return Recipe(
        name=f"{dataset}/lipconvnet-{depth}-{width}",
        data=DataRecipe(name=dataset, crop_padding=CROP_PADDING[dataset], flip=True),
        model=NAMED[f"lipconvnet-{depth}-{width}"],
        loss=LossRecipe(name="la", offset=2 * math.sqrt(2), scale=0.25),
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


def _lipnext() -> Recipe:
    """LipNeXt-64M with the settings of its paper that are known; the others are BRONet's (docs/lipnext.md)."""
    changes = ["loss.name=ce", "optim.name=manifold", "optim.weight_decay=0"]
    return override(_bronet("cifar10", "lipnext-64m", "lipnext-64m"), changes)


def _fast(name: str) -> Recipe:
    """The short schedule, found on held-out images with a BRONet of half the width (docs/speedrun.md).

    Our own neck starts from smaller weights than the published one, which a short training needs.
    """
    data = ["data.border=edge", "data.randaugment_ops=photometric", "model.published_neck=false"]
    teacher = ["loss.teacher=0.5", "loss.teacher_epochs=5"]
    return _shortened(override(named_recipe(name), [*data, *teacher]), epochs=160, budget="83/255")


def _small_fast() -> Recipe:
    """BRONet-S as its weights in the package were trained: without a teacher, and with black borders."""
    return _shortened(_bronet("cifar10", "bronet-s", "bronet-s"), epochs=200, budget="98/255")


def _shortened(recipe: Recipe, *, epochs: int, budget: str) -> Recipe:
    """Return the recipe with Muon instead of NAdam with Lookahead.

    A smaller budget raises clean accuracy, a larger one certified accuracy at large radii.
    """
    muon = ["optim.name=muon", "optim.lr=1.4e-3", "optim.momentum=0.95", "optim.lookahead_steps=0"]
    schedule = ["optim.schedule=linear", "optim.warmup_epochs=5", f"train.epochs={epochs}", "train.batch_size=512"]
    others = [f"name={recipe.name}-fast", f"loss.emma_eps={budget}", "train.precision=bf16"]
    return override(recipe, [*muon, *schedule, *others])


_BUILDERS: dict[str, Callable[[], Recipe]] = {
    "digits/quickstart": _digits,
    "cifar10/bronet-small": _small,
    "cifar10/lipnext-small": _small_lipnext,
    "cifar10/lipnext-64m": _lipnext,
    **{f"{data}/{n}": partial(_bronet, data, n, n) for data in CIFAR for n in ("bronet-m", "bronet-l")},
    "tiny-imagenet/bronet": partial(_bronet, "tiny-imagenet", "bronet", "bronet-tiny"),
    "imagenet/bronet": _imagenet,
    **{f"{data}/bronet-l-edm": partial(_edm, data) for data in CIFAR},
    "imagenet/bronet-edm2": _edm2,
    **{
        f"{data}/lipconvnet-{depth}-{width}": partial(_lipconvnet, data, depth, width)
        for data in CROP_PADDING
        for depth in LIPCONVNET_DEPTHS
        for width in LIPCONVNET_WIDTHS
    },
    **{f"{name}-fast": partial(_fast, name) for name in FAST_OF},
    "cifar10/bronet-s-fast": _small_fast,
}
