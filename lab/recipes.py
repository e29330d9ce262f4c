"""The recipes of the paper's tables that `bronet` does not train by name: rivals, other losses, sweeps of ablations.

Each is one of bronet's named recipes with a few settings changed. "-ce" trains with cross-entropy instead of LA, "-cr"
adds certificate regularisation. Where the paper is silent: Table 6 does not name its network (we read
LipConvNet-10-32); ImageNet's LiResNet has 12 layers and the learned neck, which gives its 98M parameters; the row of
Table 5 with l2 pooling but without BRO has BRONet's 14 layers. The offset of the LA ablations is the text's 2.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from bronet.errors import BronetError
from bronet.recipe import BRONetArchitecture, LipConvNetArchitecture, LossRecipe, Recipe, override, recipe_names
from bronet.recipe import named_recipe as shipped_recipe
from bronet.recipe.architecture import LIPCONVNET_WIDTHS, Architecture, StackArchitecture
from bronet.recipe.catalog import CIFAR, CROP_PADDING
from bronet.records import nearest

MARK = "@"
RIVAL_DEPTHS = {"soc": 12, "lot": 2, "cayley": 6, "cholesky": 6, "sll": 12}
"""Backbone layers in Table 3, fewer than 12 where the layer's memory did not allow more."""
RANKS = ("1/8", "1/4", "1/2", "3/4")
BETAS = ("1", "3", "5", "7")
TEMPERATURES = ("0.25", "0.5", "0.75", "1.0")
OFFSETS = ("0.5", "1.0", "1.5", "2.0", "2.5", "3.0")
CRC_LEARNING_RATE = 0.03
"""With 0.1, at which networks with a linear head train, a hidden layer in the head diverges within an epoch."""
LIRESNET = BRONetArchitecture(backbone="lipreg", dense="cholesky", published_neck=True)
IMAGENET_LIRESNET = replace(LIRESNET, width=588, stem_kernel=14, stem_stride=14, stem_padding=0)
IMAGENET_LIRESNET_L2POOL = replace(IMAGENET_LIRESNET, depth=14, neck="l2pool")


def _potential_xl(layer: str) -> StackArchitecture:
    """CPL XL and SLL X-Large: 70 convolutions of width 120 (5 inside), then 15 dense layers (2048 inside)."""
    return StackArchitecture(
        layer=layer,
        widths=(120,) * 70,
        kernels=(3,) * 70,
        strides=(1,) * 70,
        pool=4,
        dense_widths=(120 * 64,) * 15,
        hidden=5,
        dense_hidden=2048,
        activation="none",
    )


TABLE_NETWORKS: dict[str, Architecture] = {
    # LiResNet with Table 3's backbones in place of its own, and on ImageNet
    **{f"liresnet-{kind}": replace(LIRESNET, backbone=kind, depth=depth) for kind, depth in RIVAL_DEPTHS.items()},
    "liresnet-imagenet": replace(IMAGENET_LIRESNET, depth=8, neck="l2pool", regularized_depth=6),
    # Table 12's two widths
    "bronet-l6w256d4": BRONetArchitecture(width=256, depth=6, dense_depth=4, published_neck=True),
    "bronet-l6w512d4": BRONetArchitecture(width=512, depth=6, dense_depth=4, published_neck=True),
    # The rivals of Table 1
    "soc-20": LipConvNetArchitecture(depth=20, width=32, backbone="soc"),
    "soc-20-crc": LipConvNetArchitecture(depth=20, width=32, backbone="soc", head="crc"),
    "lot-20": LipConvNetArchitecture(depth=20, width=32, backbone="lot"),
    "cayley-large": StackArchitecture(
        layer="cayley", widths=(96, 96, 192, 192), kernels=(3, 1, 3, 1), strides=(1, 2, 1, 2), dense_widths=(1536, 512)
    ),
    "aol-large": StackArchitecture(
        layer="aol",
        patch=4,
        widths=(192,) * 13 + (48,),
        kernels=(1,) + (3,) * 12 + (1,),
        strides=(1,) * 14,
        dense_widths=(3072,) * 14,
    ),
    "cpl-xl": _potential_xl("cpl"),
    "sll-xl": _potential_xl("sll"),
    "sandwich": StackArchitecture(
        layer="sandwich",
        widths=(64, 64, 128, 128, 256, 256),
        kernels=(3, 1, 3, 1, 3, 1),
        strides=(1, 2, 1, 2, 1, 2),
        dense_widths=(2048, 2048, 1024),
        activation="none",
    ),
}
"""Networks of the tables that no recipe of bronet trains, by name: `bronet.build_model` builds them."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """All combinations of the values of some settings; the base recipe carries the sweep's name.

    Every member is a recipe of its own, named after what it changes, such as "cifar100/la-beta@loss.beta=3".
    """

    base: Recipe
    axes: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def name(self) -> str:
        """The name in front of the mark."""
        return self.base.name

    def members(self) -> Iterator[Recipe]:
        """Yield one recipe per combination, the last axis fastest."""
        keys = [key for key, _ in self.axes]
        for values in itertools.product(*(choices for _, choices in self.axes)):
            settings = [f"{key}={value}" for key, value in zip(keys, values, strict=True)]
            yield replace(override(self.base, settings), name=f"{self.name}{MARK}{','.join(settings)}")


def table_recipe(name: str) -> Recipe:
    """Return the recipe of bronet or of the lab that has this name; an unknown name is refused with the nearest one."""
    if name in sweeps():
        first = next(sweeps()[name].members()).name
        raise BronetError(f"{name} is a sweep: train its members one by one, such as {first!r}")
    sweep = name.partition(MARK)[0]
    own = {recipe.name: recipe for recipe in sweeps()[sweep].members()} if sweep in sweeps() else ablations()
    if name in own:
        return own[name]
    known = own if sweep in sweeps() else {*own, *recipe_names()}
    if name not in known:
        raise BronetError(f"unknown recipe {name!r}; did you mean {nearest(name, known)!r}?")
    return shipped_recipe(name)


@cache
def ablations() -> dict[str, Recipe]:
    """Return the lab's recipes by name, those of sweeps apart."""
    return {recipe.name: recipe for recipe in (*_of_small_images(), *_of_imagenet(), *_of_lipconvnet())}


@cache
def sweeps() -> dict[str, Sweep]:
    """Return Table 12 (rank n, two widths), Table 14 (beta) and the grid of App. D.6 (temperature and offset)."""
    found = []
    for width in (256, 512):
        name = f"l6w{width}d4"
        base = _with_model(f"cifar100/rank-{name}", "cifar100/bronet-m", TABLE_NETWORKS[f"bronet-{name}"])
        found.append(Sweep(base=base, axes=(("model.rank", RANKS),)))
    recipe = shipped_recipe("cifar100/lipconvnet-10-32")
    loss = replace(recipe.loss, offset=2.0)
    found.append(Sweep(base=replace(recipe, name="cifar100/la-beta", loss=loss), axes=(("loss.beta", BETAS),)))
    axes = (("loss.temperature", TEMPERATURES), ("loss.offset", OFFSETS))
    found.append(Sweep(base=replace(recipe, name="cifar100/la-grid", loss=loss), axes=axes))
    return {sweep.name: sweep for sweep in found}


def _of_small_images() -> Iterator[Recipe]:
    """Tables 1, 2, 3 and 9."""
    for data in CIFAR:
        yield _with_ce(_with_model(f"{data}/liresnet", f"{data}/bronet-m", LIRESNET))
        for name in (f"{data}/bronet-m", f"{data}/bronet-l"):
            yield _with_ce(replace(shipped_recipe(name), name=f"{name}-ce"))
        synthetic = f"{data}/bronet-l-edm"
        yield _with_ce(_with_model(f"{data}/liresnet-edm", synthetic, LIRESNET))
        yield _with_model(f"{data}/liresnet-la-edm", synthetic, LIRESNET)
        for kind, depth in RIVAL_DEPTHS.items():
            model = replace(LIRESNET, backbone=kind, depth=depth, rank="1/2")
            yield _with_model(f"{data}/liresnet-{kind}-edm", synthetic, model)
    yield _with_ce(_with_model("tiny-imagenet/liresnet", "tiny-imagenet/bronet", LIRESNET))
    yield _with_ce(replace(shipped_recipe("tiny-imagenet/bronet"), name="tiny-imagenet/bronet-ce"))


def _of_imagenet() -> Iterator[Recipe]:
    """Tables 1, 2 and 5."""
    bronet, synthetic = "imagenet/bronet", "imagenet/bronet-edm2"
    yield _with_ce(_with_model("imagenet/liresnet", bronet, IMAGENET_LIRESNET))
    yield _with_model("imagenet/liresnet-la", bronet, IMAGENET_LIRESNET)
    yield _with_model("imagenet/liresnet-la-l2pool", bronet, IMAGENET_LIRESNET_L2POOL)
    yield _with_ce(replace(shipped_recipe(bronet), name=f"{bronet}-ce"))
    yield _with_ce(_with_model("imagenet/liresnet-edm2", synthetic, IMAGENET_LIRESNET))
    yield _with_model("imagenet/liresnet-la-edm2", synthetic, IMAGENET_LIRESNET)


def _of_lipconvnet() -> Iterator[Recipe]:
    """Tables 1, 4, 6, 13 and 15: other losses, layers and heads, those of Tables 4 to 15 at depth 10."""
    for data in CIFAR:
        base = _with_cr(shipped_recipe(f"{data}/lipconvnet-10-32"))
        model = base.model
        assert isinstance(model, LipConvNetArchitecture)
        base = replace(base, optim=replace(base.optim, lr=CRC_LEARNING_RATE))
        yield replace(base, name=f"{data}/soc-20-crc", model=TABLE_NETWORKS["soc-20-crc"])
        yield replace(base, name=f"{data}/lipconvnet-10-32-crc", model=replace(model, head="crc"))
    for data in CROP_PADDING:
        for width in LIPCONVNET_WIDTHS:
            recipe = shipped_recipe(f"{data}/lipconvnet-10-{width}")
            yield _with_cr(recipe)
            if width == LIPCONVNET_WIDTHS[0]:
                yield replace(recipe, name=f"{recipe.name}-ce", loss=LossRecipe(name="ce"))
            for kind in ("soc", "lot"):
                assert isinstance(recipe.model, LipConvNetArchitecture)
                model = replace(recipe.model, backbone=kind)
                rival = replace(recipe, name=f"{recipe.name}-{kind}", model=model)
                yield rival
                yield _with_cr(rival)


def _with_model(name: str, base: str, model: Architecture) -> Recipe:
    return replace(shipped_recipe(base), name=name, model=model)


def _with_ce(recipe: Recipe) -> Recipe:
    return replace(recipe, loss=replace(recipe.loss, name="ce"))


def _with_cr(recipe: Recipe) -> Recipe:
    """Cross-entropy with CR of weight 0.5 (App. C.3), on the radius as in the published code."""
    return replace(recipe, name=f"{recipe.name}-cr", loss=LossRecipe(name="ce+cr", gamma=0.5))
