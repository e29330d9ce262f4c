"""The recipes of BRONet and LiResNet: Tables 1, 2, 3, 5, 9 to 12 of the paper (App. B.3, B.5 to B.7).

Rows without "+LA" train with cross-entropy; all train on EMMA-adjusted logits. Where the paper is silent: ImageNet's
LiResNet has 12 layers and the learned neck, which gives its 98M parameters; the row of Table 5 with l2 pooling but
without BRO has BRONet's 14 layers. Layers of rivals (Table 3) appear as soon as the architecture knows them.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

from bronet.recipe.architecture import NAMED, Architecture, BRONetArchitecture
from bronet.recipe.convolution_kind import BackboneKind
from bronet.recipe.schema import DataRecipe, LossRecipe, OptimRecipe, Recipe, TrainRecipe
from bronet.recipe.sweep import Sweep

CROP_PADDING = {"cifar10": 4, "cifar100": 4, "tiny-imagenet": 8}
CIFAR = ("cifar10", "cifar100")
SYNTHETIC_CIFAR = {"cifar10": "edm-cifar10-4m.npz", "cifar100": "edm-cifar100-1m.npz"}
SYNTHETIC_IMAGENET = "edm2-imagenet-2m"
IMAGENET_RESIZE = (224, 288)
RIVAL_DEPTHS = {"lot": 2, "cayley": 6, "cholesky": 6, "sll": 12, "soc": 12}
"""Backbone layers in Table 3, less than 12 where the layer's memory did not allow more."""
RANKS = ("1/8", "1/4", "1/2", "3/4")

LIRESNET = NAMED["liresnet"]
IMAGENET_LIRESNET = BRONetArchitecture(
    width=588, depth=12, backbone="lipreg", dense="cholesky", stem_kernel=14, stem_stride=14, stem_padding=0
)
IMAGENET_LIRESNET_L2POOL = replace(IMAGENET_LIRESNET, depth=14, neck="l2pool")


def bronet_recipes() -> Iterator[Recipe]:
    """Yield every recipe, in the order of the tables."""
    for dataset in CIFAR:
        yield _without_la(_small_images(dataset, "liresnet-la", LIRESNET), f"{dataset}/liresnet")
        for model in ("bronet-m", "bronet-l"):
            recipe = _small_images(dataset, model, NAMED[model])
            yield _without_la(recipe, f"{dataset}/{model}-ce")
            yield recipe
    yield from _imagenet_recipes()
    yield from _extra_data()
    recipe = _small_images("tiny-imagenet", "bronet", NAMED["bronet-tiny"])
    yield _without_la(_small_images("tiny-imagenet", "liresnet-la", LIRESNET), "tiny-imagenet/liresnet")
    yield _without_la(recipe, "tiny-imagenet/bronet-ce")
    yield recipe


def bronet_sweeps() -> Iterator[Sweep]:
    """Yield Table 12: the rank n of the backbone and the dense layers, for two widths."""
    for width in (256, 512):
        name = f"l6w{width}d4"
        base = _small_images("cifar100", f"rank-{name}", NAMED[f"bronet-{name}"])
        yield Sweep(base=base, axes=(("model.rank", RANKS),))


def _small_images(dataset: str, name: str, model: Architecture) -> Recipe:
    """Tables 1 and 9: NAdam with Lookahead, LA on EMMA-adjusted logits, 800 epochs."""
    return Recipe(
        name=f"{dataset}/{name}",
        data=DataRecipe(name=dataset, crop_padding=CROP_PADDING[dataset], flip=True, randaugment_probability=0.5),
        model=model,
        loss=LossRecipe(name="la", emma=True, emma_eps="108/255"),
        optim=OptimRecipe(name="nadam", lr=1e-3, weight_decay=4e-5, warmup_epochs=20),
        train=TrainRecipe(epochs=800, batch_size=256),
    )


def _imagenet(name: str, model: Architecture) -> Recipe:
    """A larger batch, a smaller EMMA budget, no weight decay, RandAugment on every image."""
    return Recipe(
        name=f"imagenet/{name}",
        data=DataRecipe(name="imagenet", flip=True, randaugment_probability=1.0, resize=IMAGENET_RESIZE),
        model=model,
        loss=LossRecipe(name="la", emma=True, emma_eps="72/255"),
        optim=OptimRecipe(name="nadam", lr=1e-3, weight_decay=0.0, warmup_epochs=20),
        train=TrainRecipe(epochs=400, batch_size=1024),
    )


def _imagenet_recipes() -> Iterator[Recipe]:
    """Tables 1 and 5."""
    bronet = _imagenet("bronet", NAMED["bronet-imagenet"])
    liresnet = _imagenet("liresnet-la", IMAGENET_LIRESNET)
    yield _without_la(liresnet, "imagenet/liresnet")
    yield liresnet
    yield _imagenet("liresnet-la-l2pool", IMAGENET_LIRESNET_L2POOL)
    yield _without_la(bronet, "imagenet/bronet-ce")
    yield bronet


def _extra_data() -> Iterator[Recipe]:
    """Tables 2 and 3: each batch mixed with generated images, no weight decay."""
    for dataset in CIFAR:
        liresnet = _with_edm(_small_images(dataset, "liresnet-la", LIRESNET))
        yield _without_la(liresnet, f"{dataset}/liresnet-edm")
        yield liresnet
        yield _with_edm(_small_images(dataset, "bronet-l", NAMED["bronet-l"]))
        for kind in get_args(BackboneKind):
            if kind in RIVAL_DEPTHS:
                model = BRONetArchitecture(backbone=kind, depth=RIVAL_DEPTHS[kind], dense="cholesky", rank="1/2")
                yield _with_edm(_small_images(dataset, f"liresnet-{kind}", model))
    liresnet = _with_edm2(_imagenet("liresnet-la", IMAGENET_LIRESNET))
    yield _without_la(liresnet, "imagenet/liresnet-edm2")
    yield liresnet
    yield _with_edm2(_imagenet("bronet", NAMED["bronet-imagenet"]))


def _without_la(recipe: Recipe, name: str) -> Recipe:
    return replace(recipe, name=name, loss=replace(recipe.loss, name="ce"))


def _with_edm(recipe: Recipe) -> Recipe:
    """256 real and 768 generated images in a batch."""
    return replace(
        recipe,
        name=f"{recipe.name}-edm",
        data=replace(recipe.data, synthetic=SYNTHETIC_CIFAR[recipe.data.name], synthetic_batch=768),
        optim=replace(recipe.optim, weight_decay=0.0),
        train=replace(recipe.train, batch_size=1024),
    )


def _with_edm2(recipe: Recipe) -> Recipe:
    """512 real and 512 generated images in a batch."""
    data = replace(recipe.data, synthetic=SYNTHETIC_IMAGENET, synthetic_batch=512, synthetic_crop_padding=0)
    return replace(recipe, name=f"{recipe.name}-edm2", data=data)
