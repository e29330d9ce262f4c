"""LipConvNet and BRONet (Figures 8 and 9), drawn from networks built on the meta device: no shape is typed by hand."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import singledispatch
from itertools import groupby

import torch
from torch import nn

import bronet
from bronet.graph.model import layers_of
from bronet.layers import (
    Bias,
    BROConv2d,
    BROLinear,
    Centring,
    CholeskyLinear,
    Flatten,
    L2NormPool,
    LastLayerNormalized,
    LipschitzLayer,
    LipschitzRegularizedConv2d,
    MaxMin,
    Normalization,
    PixelUnshuffle,
)
from lab.figures.canvas import SOFT, Sheet, svg

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Link:
    """One layer of the chain: its place, its kind, and the shape of one image's activations behind it."""

    name: str
    layer: nn.Module
    output: Shape

    @property
    def kind(self) -> str:
        return type(self.layer).__name__


@singledispatch
def output_of(layer: nn.Module, shape: Shape) -> Shape:
    """Return the shape behind a layer; a kind that is not known here raises."""
    raise NotImplementedError(type(layer).__name__)


@output_of.register(Bias)
@output_of.register(Centring)
@output_of.register(MaxMin)
@output_of.register(Normalization)
def _(layer: LipschitzLayer, shape: Shape) -> Shape:
    return shape


@output_of.register
def _(layer: LipschitzRegularizedConv2d, shape: Shape) -> Shape:
    reach = 2 * layer.padding - layer.kernel_size
    return (layer.out_channels, *((side + reach) // layer.stride + 1 for side in shape[1:]))


@output_of.register
def _(layer: BROConv2d, shape: Shape) -> Shape:
    kept = 2 * layer.padding if layer.keep_padding else 0
    return (layer.out_channels, *(side // layer.stride + kept for side in shape[1:]))


@output_of.register
def _(layer: PixelUnshuffle, shape: Shape) -> Shape:
    return (shape[0] * layer.factor**2, *(side // layer.factor for side in shape[1:]))


@output_of.register
def _(layer: L2NormPool, shape: Shape) -> Shape:
    return (shape[0], *(side // layer.patch for side in shape[1:]))


@output_of.register
def _(layer: Flatten, shape: Shape) -> Shape:
    return (int(torch.Size(shape).numel()),)


@output_of.register(BROLinear)
@output_of.register(CholeskyLinear)
def _(layer: BROLinear | CholeskyLinear, shape: Shape) -> Shape:
    return (layer.out_features, *shape[1:])


def links(model: bronet.CertifiableModel) -> Iterator[Link]:
    """Yield every layer with the shape behind it, the head last."""
    shape: Shape = model.image_shape
    for name, layer in layers_of(model):
        if layer is model.head:
            continue
        shape = output_of(layer, shape)
        yield Link(name, layer, shape)
    assert isinstance(model.head, LastLayerNormalized)
    yield Link("head", model.head, (model.head.weight.shape[0],))


def shape_text(shape: Shape) -> str:
    """Return 512 x 16 x 16."""
    return " x ".join(str(side) for side in shape)


def millions(model: nn.Module) -> str:
    """Return the number of parameters, in millions."""
    return f"{sum(parameter.numel() for parameter in model.parameters()) / 1e6:.1f} M"


@dataclass(frozen=True)
class Row:
    """One line of a drawing: what the layers are, how many times, and the shape behind them."""

    section: str
    text: str
    detail: str
    times: int
    outputs: tuple[Shape, Shape]
    hue: str

    @property
    def shapes(self) -> str:
        """The shape behind the layers; two where they change it on the way."""
        first, last = self.outputs
        return shape_text(last) if first == last else f"{shape_text(first)} to\n{shape_text(last)}"


HUE = {
    "Normalization": "green",
    "LipschitzRegularizedConv2d": "orange",
    "BROConv2d": "blue",
    "BROLinear": "blue",
    "CholeskyLinear": "violet",
    "PixelUnshuffle": "green",
    "L2NormPool": "green",
    "Flatten": "green",
    "LastLayerNormalized": "violet",
}
SHIFTS = frozenset({"Bias", "Centring", "MaxMin"})


@singledispatch
def detail_of(layer: nn.Module) -> str:
    """Return the second line of a box."""
    return ""


@detail_of.register
def _(layer: BROConv2d) -> str:
    stride = f", stride {layer.stride}" if layer.stride > 1 else ""
    return f"{layer.in_channels} to {layer.out_channels}, kernel {layer.kernel_size}, rank {layer.rank}{stride}"


@detail_of.register
def _(layer: LipschitzRegularizedConv2d) -> str:
    c_out, c_in, k, _ = layer.weight.shape
    return f"{c_in} to {c_out}, kernel {k}, stride {layer.stride}"


@detail_of.register
def _(layer: BROLinear) -> str:
    return f"{layer.in_features} to {layer.out_features}, rank {layer.rank}"


@detail_of.register
def _(layer: CholeskyLinear) -> str:
    return f"{layer.in_features} to {layer.out_features}"


@detail_of.register
def _(layer: PixelUnshuffle) -> str:
    return f"{layer.factor} x {layer.factor} patches to channels"


@detail_of.register
def _(layer: Normalization) -> str:
    return "x - mean" if layer.std == 1 else f"(x - mean) / {layer.std:g}"


@detail_of.register
def _(layer: L2NormPool) -> str:
    return f"length of each channel over {layer.patch} x {layer.patch} pixels"


@detail_of.register
def _(layer: LastLayerNormalized) -> str:
    return "rows of length 1"


def _section(name: str) -> str:
    """Return the first word of a layer's name; stages are counted from one."""
    first, _, rest = name.partition(".")
    return f"stage {int(rest.partition('.')[0]) + 1}" if first == "stages" else first


def rows(model: bronet.CertifiableModel) -> list[Row]:
    """Return the lines of a drawing: a layer with its shifts and activation is one, equal neighbours are counted."""
    blocks: list[tuple[str, list[Link]]] = []
    for link in links(model):
        if link.kind in SHIFTS:
            blocks[-1][1].append(link)
        else:
            blocks.append((_section(link.name), [link]))
    lines = [
        (section, " + ".join(link.kind for link in block), detail_of(block[0].layer), block)
        for section, block in blocks
    ]
    found = []
    for (section, text, detail), same in groupby(lines, key=lambda line: line[:3]):
        equal = [block for *_, block in same]
        outputs = (equal[0][-1].output, equal[-1][-1].output)
        found.append(Row(section, text, detail, len(equal), outputs, HUE[equal[0][0].kind]))
    return found


def draw_network(name: str, dataset: str, title: str) -> str:
    """Draw a network from top to bottom: sections at the left, layers in the middle, shapes at the right."""
    model = bronet.create_model(name, dataset=dataset, device="meta")
    lines = rows(model)
    height, pitch = 7.5 * len(lines) + 13, 7.5
    sheet = Sheet(height)
    top = height - 4
    sheet.words(50, top, f"{title}: {millions(model)} parameters", size=11, bold=True)
    y = top - 5.5
    sheet.words(45, y, f"image {shape_text(model.image_shape)}, pixels in [0, 1]", size=9, colour=SOFT)
    shown, below = "", 1.3
    for line in lines:
        behind = 1.2 if line.times > 1 else 0.0  # copies drawn behind reach higher
        sheet.arrow((45, y - below), (45, y - pitch + 2.6 + behind), colour=SOFT)
        y, below = y - pitch, 2.6
        if line.section != shown:
            sheet.words(2, y, line.section, size=9.5, anchor="left", bold=True)
            shown = line.section
        if line.times > 1:
            for back in (1.2, 0.6):
                sheet.box(45 + back, y + back, 56, 5.2, hue=line.hue)
        sheet.box(45, y, 56, 5.2, f"{line.text}\n{line.detail}" if line.detail else line.text, hue=line.hue, size=8.5)
        if line.times > 1:
            sheet.words(75.3, y, f"x {line.times}", size=11, anchor="left", bold=True)
        sheet.words(98, y, line.shapes, size=9, anchor="right", colour=SOFT)
    return svg(sheet.figure, name)


def draw_networks() -> dict[str, str]:
    """Return the drawings by name."""
    return {
        "lipconvnet": draw_network("lipconvnet-10-32", "cifar100", "LipConvNet-10-32 for CIFAR-100"),
        "bronet-m": draw_network("bronet-m", "cifar10", "BRONet-M for CIFAR-10"),
        "bronet-imagenet": draw_network("bronet-imagenet", "imagenet", "BRONet for ImageNet"),
    }
