"""Layers and the weights that try to break their bounds. A new layer is one line of `LAYERS`."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from bronet.layers import (
    CONVOLUTIONS,
    Bias,
    BROConv2d,
    BROConvTranspose2d,
    BROLinear,
    Centring,
    CholeskyLinear,
    Flatten,
    Groups,
    Householder,
    L2NormPool,
    LastLayerNormalized,
    LipschitzLayer,
    LipschitzRegularizedConv2d,
    MaxMin,
    MaxPool,
    Normalization,
    OrthogonalHead,
    PixelUnshuffle,
    RepeatedPixels,
    Scale,
    SmoothHead,
    Standardization,
)
from bronet.layers.lipnext import HalfAbs, OrthogonalMix, Position, Shift
from bronet.layers.shape import ScaledMeanPool

Shape = tuple[int, ...]
Factory = Callable[..., LipschitzLayer]
"""Called with dtype=...; layers without numbers of their own ignore it through `_plain`."""


def _plain(layer: Callable[[], LipschitzLayer], *, dtype: torch.dtype) -> LipschitzLayer:
    return layer().to(dtype)


LAYERS: dict[str, tuple[Factory, Shape]] = {
    "bro dense": (partial(BROLinear, 6, 6, rank=2), (6,)),
    "bro dense wide": (partial(BROLinear, 7, 4), (7,)),
    "bro dense tall": (partial(BROLinear, 4, 7, rank=3, residual_depth=4), (4,)),
    "bro dense per pixel": (partial(BROLinear, 4, 4), (4, 2, 3)),
    "cholesky": (partial(CholeskyLinear, 6, 6, residual_depth=2), (6,)),
    "cholesky wide": (partial(CholeskyLinear, 9, 4), (9,)),
    "cholesky tall": (partial(CholeskyLinear, 4, 9), (4,)),
    "bro convolution": (partial(BROConv2d, 4, 4, 3, rank=1), (4, 3, 4)),
    "bro convolution residual": (partial(BROConv2d, 4, 4, 3, residual_depth=3), (4, 4, 4)),
    "bro convolution circular": (partial(BROConv2d, 4, 4, 3, padding_mode="circular"), (4, 3, 3)),
    "bro convolution kept padding": (partial(BROConv2d, 4, 4, 3, keep_padding=True), (4, 3, 3)),
    "bro convolution wider": (partial(BROConv2d, 2, 5, 3), (2, 4, 3)),
    "bro convolution narrower": (partial(BROConv2d, 5, 2, 3), (5, 4, 3)),
    "bro convolution strided": (partial(BROConv2d, 2, 4, 3, stride=2), (2, 6, 4)),
    "bro convolution 1x1": (partial(BROConv2d, 4, 4, 1), (4, 2, 2)),
    "bro convolution separable": (partial(BROConv2d, 2, 2, 3, rank=1), (2, 8, 7)),
    "convolution": (partial(LipschitzRegularizedConv2d, 3, 4, 3, input_size=(4, 3), padding=1), (3, 4, 3)),
    "convolution strided": (
        partial(LipschitzRegularizedConv2d, 2, 5, 5, input_size=(5, 6), stride=2, padding=2),
        (2, 5, 6),
    ),
    "convolution patches": (partial(LipschitzRegularizedConv2d, 2, 4, 3, input_size=(6, 5), stride=3), (2, 6, 5)),
    "convolution residual": (
        partial(LipschitzRegularizedConv2d, 4, 4, 3, input_size=(3, 3), padding=1, residual_depth=2),
        (4, 3, 3),
    ),
    "normalised head": (partial(LastLayerNormalized, 6, 4), (6,)),
    "orthogonal head": (partial(OrthogonalHead, 6, 3), (6,)),
    "smooth head": (partial(SmoothHead, 4, 3), (4,)),
    "householder": (partial(Householder, 6), (6,)),
    "householder twice": (partial(Householder, 4, order=2), (4, 2, 2)),
    "normalisation": (partial(Normalization, (0.1, 0.2), std=0.2507), (2, 2, 2)),
    "bias": (partial(Bias, 3), (3, 2, 2)),
    "centring": (partial(Centring, 3), (3, 2, 2)),
    "rotation": (partial(OrthogonalMix, 6), (6, 2, 2)),
    "rotation shifted": (partial(OrthogonalMix, 4, 1), (4, 3, 2)),
    "shift": (partial(_plain, partial(Shift, 5, 1)), (5, 3, 2)),
    "position": (partial(Position, (2, 3)), (2, 2, 3)),
    "half abs": (partial(_plain, HalfAbs), (5, 2, 2)),
    "maxmin": (partial(_plain, MaxMin), (6,)),
    "flatten": (partial(_plain, Flatten), (2, 3, 2)),
    "unshuffle": (partial(_plain, partial(PixelUnshuffle, 2)), (2, 4, 2)),
    "max pool": (partial(_plain, partial(MaxPool, 2)), (2, 4, 2)),
    "l2 pool": (partial(_plain, partial(L2NormPool, 2)), (2, 4, 2)),
    "repeated pixels": (partial(_plain, partial(RepeatedPixels, 2)), (2, 2, 3)),
    "scale": (partial(Scale, 3, limit=1.5), (3, 2, 2)),
    "standardization": (partial(Standardization, 3), (3, 2, 2)),
    "groups": (partial(_plain, lambda: Groups(BROConv2d(2, 2, 3), BROConv2d(2, 3, 3))), (4, 3, 4)),
    "bro convolution transposed": (partial(_plain, partial(BROConvTranspose2d, 4, 1, stride=2)), (4, 3, 2)),
}

RIVALS = [kind for kind in CONVOLUTIONS if kind not in ("bro", "lipreg")]
for _kind in RIVALS:
    for _name, _channels, _mode in (("", (4, 4), None), (" wider", (2, 4), None), (" circular", (4, 2), "circular")):
        _build = partial(CONVOLUTIONS[_kind], *_channels, 3, padding_mode=_mode, input_size=(4, 3))
        LAYERS[f"{_kind}{_name}"] = (_build, (_channels[0], 4, 3))
LAYERS["mean pool"] = (partial(_plain, partial(ScaledMeanPool, 3)), (2, 6, 3))

NONLINEAR = ("max pool", "householder", "maxmin", "l2 pool", "cpl", "sll", "sandwich", "smooth head")
LINEAR_UP_TO_A_SHIFT = frozenset(name for name in LAYERS if not name.startswith(NONLINEAR))


def _draw(weight: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(weight.shape, generator=generator, dtype=torch.float64)


def _rank_deficient(weight: Tensor, generator: torch.Generator) -> Tensor:
    flat = _draw(weight, generator).flatten(1)
    return (flat[:, :1] * flat[:1]).view(weight.shape)


def _duplicated(weight: Tensor, generator: torch.Generator) -> Tensor:
    drawn = _draw(weight, generator)
    drawn[:, -1] = drawn[:, 0]
    return drawn


def _vanishing(weight: Tensor, generator: torch.Generator) -> Tensor:
    """Taps that sum to zero: the spectrum vanishes at frequency zero, up to rounding."""
    drawn = _draw(weight, generator)
    rest = tuple(range(2, weight.ndim))
    return drawn - drawn.mean(rest, keepdim=True) if rest else drawn - drawn.mean(1, keepdim=True)


def _mixed(weight: Tensor, generator: torch.Generator) -> Tensor:
    """Columns sixteen orders of magnitude apart."""
    sizes = torch.logspace(-8, 8, weight.shape[1], dtype=torch.float64)
    return _draw(weight, generator) * sizes.view(1, -1, *[1] * (weight.ndim - 2))


def _kaiming(weight: Tensor, generator: torch.Generator) -> Tensor:
    return _draw(weight, generator) * math.sqrt(2 / weight[0].numel())


KINDS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "normal": _draw,
    "zero": lambda weight, _: torch.zeros(weight.shape, dtype=torch.float64),
    "ones": lambda weight, _: torch.ones(weight.shape, dtype=torch.float64),
    "rank deficient": _rank_deficient,
    "duplicated columns": _duplicated,
    "kaiming": _kaiming,
    "vanishing frequency": _vanishing,
    "mixed scales": _mixed,
    "1e-20": lambda weight, g: 1e-20 * _draw(weight, g),
    "1e20": lambda weight, g: 1e20 * _draw(weight, g),
    "1e-150": lambda weight, g: 1e-150 * _draw(weight, g),
    "1e150": lambda weight, g: 1e150 * _draw(weight, g),
    "1e-200": lambda weight, g: 1e-200 * _draw(weight, g),
    "trained": _draw,
}
ONLY_FLOAT64 = frozenset({"1e-150", "1e150", "1e-200"})


def hostile(name: str, kind: str, seed: int) -> LipschitzLayer:
    """Return a layer of this name with weights of this kind; every other seed in float32, where that can hold them."""
    factory, shape = LAYERS[name]
    dtype = torch.float32 if seed % 2 and kind not in ONLY_FLOAT64 else torch.float64
    layer = factory(dtype=dtype).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            fill = KINDS[kind] if parameter.ndim > 1 else _draw
            parameter.copy_(fill(parameter, generator))
    if kind == "trained":
        _train(layer, torch.randn(8, *shape, generator=generator, dtype=dtype))
    return layer


def _train(layer: nn.Module, images: Tensor) -> None:
    parameters = list(layer.parameters())
    if not parameters:
        return
    optimiser = torch.optim.SGD(parameters, lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        layer(images).square().mean().add(layer(images).mean()).backward()
        nn.utils.clip_grad_norm_(parameters, 3.0)
        optimiser.step()
