"""Recipes of our own, not the paper's: small runs for a CPU, and short schedules for one GPU ("-fast").

The short schedule was found on held-out images with a BRONet of half the width, and run with BRONet-M on CIFAR-10:
eleven minutes of one H200 (docs/speedrun.md). Recipes for other networks and images take it over unchanged, but for
BRONet-S, whose weights in the package are older than the teacher and the augmentation without black borders.
"""

from collections.abc import Iterator
from dataclasses import replace

from bronet.recipe.architecture import NAMED
from bronet.recipe.bronet_recipes import bronet_recipes
from bronet.recipe.schema import CertifyRecipe, DataRecipe, LossRecipe, OptimRecipe, Recipe, TrainRecipe

FAST_BATCH = 512
# Between clean accuracy, which a smaller budget raises, and certified accuracy at large radii.
TAUGHT_EPOCHS, TAUGHT_BUDGET = 160, "83/255"
UNTAUGHT_EPOCHS, UNTAUGHT_BUDGET = 200, "98/255"
TEACHER, TEACHER_EPOCHS = 0.5, 5
FAST_OPTIMIZER = OptimRecipe(
    name="muon",
    lr=1.4e-3,
    momentum=0.95,
    weight_decay=4e-5,
    lookahead_steps=0,
    schedule="linear",
    warmup_epochs=5,
)
FAST_OF = (
    "cifar10/bronet-m",
    "cifar10/bronet-l",
    "cifar100/bronet-m",
    "cifar100/bronet-l",
    "tiny-imagenet/bronet",
)


def small_recipes() -> Iterator[Recipe]:
    """Yield what runs on a CPU."""
    yield _digits()
    yield _small()


def fast_recipes() -> Iterator[Recipe]:
    """Yield the paper's networks, and one that is small enough to be in the package, with the short schedule."""
    for recipe in bronet_recipes():
        if recipe.name in FAST_OF:
            loss = replace(recipe.loss, emma_eps=TAUGHT_BUDGET, teacher=TEACHER, teacher_epochs=TEACHER_EPOCHS)
            data = replace(recipe.data, border="edge", randaugment_ops="photometric")
            yield _fast(replace(recipe, data=data), loss, epochs=TAUGHT_EPOCHS)
        if recipe.name == "cifar10/bronet-m":
            small = replace(recipe, name="cifar10/bronet-s", model=NAMED["bronet-s"])
            loss = replace(recipe.loss, emma_eps=UNTAUGHT_BUDGET)
            yield _fast(small, loss, epochs=UNTAUGHT_EPOCHS)


def _fast(recipe: Recipe, loss: LossRecipe, *, epochs: int) -> Recipe:
    """Return a recipe with this loss and so few epochs, and Muon for NAdam with Lookahead."""
    return replace(
        recipe,
        name=f"{recipe.name}-fast",
        loss=loss,
        optim=FAST_OPTIMIZER,
        train=replace(recipe.train, epochs=epochs, batch_size=FAST_BATCH, precision="bf16"),
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
