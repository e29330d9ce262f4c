"""The BRO convolution, drawn: its flow of data, as the formula reads and as it runs, and the shapes it can have.

Every number comes from a layer that is built; the shapes are drawn to scale.
"""

from dataclasses import dataclass

from bronet.layers import BROConv2d
from bronet.ortho.bro_convolution import Windows
from bronet.ortho.real_dft import frequencies
from lab.figures.canvas import INK, PANEL, SOFT, Sheet, fill, stroke, svg

IMAGE = 16


@dataclass(frozen=True)
class Sizes:
    """The numbers in the drawing."""

    channels: int
    rank: int
    kernel: int
    image: int
    grid: int
    all_frequencies: int
    frequencies: int


def sizes() -> Sizes:
    """Read them off BRONet-M's backbone layer for CIFAR images."""
    layer = BROConv2d(512, 512, 3, rank=128, device="meta")
    grid = Windows.of((IMAGE, IMAGE), layer.padding, keep_padding=False).source.grid
    kept = len(frequencies(grid, dense=True))
    m, n, k, _ = layer.weight.shape
    return Sizes(m, n, k, IMAGE, grid[0], grid[0] * grid[1], kept)


def draw_flow() -> str:
    """Draw both forms of the same map."""
    s = sizes()
    sheet = Sheet(64)
    _textbook(sheet, s)
    _real(sheet, s)
    return svg(sheet.figure, "bro-conv")


def _textbook(sheet: Sheet, s: Sizes) -> None:
    sheet.panel(1, 33, 98, 30, PANEL)
    sheet.words(3, 60.3, "As the formula reads (Algorithm 1)", size=10, anchor="left", bold=True)
    y = 51.5
    steps = [
        (8, 11, f"x\n{s.channels} x {s.image} x {s.image}", "blue"),
        (23.5, 12, f"pad with zeros\n{s.grid} x {s.grid}", "green"),
        (39, 13.5, f"DFT\n{s.all_frequencies} frequencies", "green"),
        (57.5, 18, "W = I - 2 V (V*V)⁻¹ V*\nat every frequency", "violet"),
        (74.5, 11, "inverse\nDFT", "green"),
        (86, 7, "crop", "green"),
        (95, 6.5, "y", "blue"),
    ]
    for (x, w, text, hue), after in zip(steps, [*steps[1:], None], strict=True):
        sheet.box(x, y, w, 7.5, text, hue=hue, size=8.5)
        if after is not None:
            sheet.arrow((x + w / 2, y), (after[0] - after[1] / 2, y))
    sheet.box(
        23.5,
        38.5,
        22,
        6,
        f"kernel, any numbers\n{s.channels} x {s.rank} x {s.kernel} x {s.kernel}",
        hue="orange",
        size=8.5,
    )
    sheet.box(46, 38.5, 11, 6, "DFT", hue="green", size=8.5)
    sheet.arrow((34.5, 38.5), (40.5, 38.5))
    sheet.path([(51.5, 38.5), (57.5, 38.5), (57.5, 47.75)])
    sheet.words(59.2, 41.2, f"V: {s.channels} x {s.rank}, complex", size=8.5, anchor="left", colour=SOFT)
    sheet.words(59.2, 38.2, f"W: {s.channels} x {s.channels}, unitary", size=8.5, anchor="left", colour=SOFT)


def _real(sheet: Sheet, s: Sizes) -> None:
    sheet.panel(1, 1, 98, 30, PANEL)
    sheet.words(
        3, 28.3, "As it runs: the same map, real and of low rank; W is never formed", size=10, anchor="left", bold=True
    )
    y = 17.5
    pixels = s.image**2
    steps = [
        (8, 11, f"x\n{pixels} x {s.channels}", "blue"),
        (23, 13, f"D: pad + DFT\n{2 * s.frequencies} x {pixels}", "green"),
        (38.5, 10, f"A'\n{2 * s.rank} x {2 * s.channels}", "orange"),
        (51.5, 10, f"S⁻¹\n{2 * s.rank} x {2 * s.rank}", "violet"),
        (64.5, 10, f"A\n{2 * s.channels} x {2 * s.rank}", "orange"),
        (79, 13, f"D': DFT⁻¹ + crop\n{pixels} x {2 * s.frequencies}", "green"),
    ]
    for (x, w, text, hue), after in zip(steps, [*steps[1:], None], strict=True):
        sheet.box(x, y, w, 7.5, text, hue=hue, size=8.5)
        if after is not None:
            sheet.arrow((x + w / 2, y), (after[0] - after[1] / 2, y))
    sheet.circle(90, y, 1.8, "+", hue="blue")
    sheet.arrow((85.5, y), (88.2, y))
    sheet.words(87.2, y + 2.2, "-2", size=8.5, colour=stroke("violet"))
    sheet.box(96, y, 5, 7.5, "y", hue="blue", size=8.5)
    sheet.arrow((91.8, y), (93.5, y))
    sheet.path([(8, y + 3.75), (8, 24.3), (90, 24.3), (90, y + 1.8)], colour=SOFT)
    sheet.words(49, 25.5, "x itself", size=8, colour=SOFT)
    sheet.box(
        38.5, 5.8, 22, 6, f"the same kernel\n{s.channels} x {s.rank} x {s.kernel} x {s.kernel}", hue="orange", size=8.5
    )
    sheet.arrow((38.5, 8.8), (38.5, y - 3.75), colour=INK)
    sheet.path([(49.5, 4.8), (64.5, 4.8), (64.5, y - 3.75)])
    sheet.path([(49.5, 7), (51.5, 7), (51.5, y - 3.75)])
    note = (
        "A = [[Re V, -Im V], [Im V, Re V]]\n"
        f"S = A'A, at {s.frequencies} of the {s.all_frequencies} frequencies:\n"
        "the others are their conjugates"
    )
    sheet.words(67, 7, note, size=8, anchor="left", colour=SOFT)


SCALE = 2.1
"""Units of the sheet per channel."""


@dataclass(frozen=True)
class Shape:
    """The channels of a layer, the size of its reflector, and the rank of V."""

    c_in: int
    c_out: int
    square: int
    rank: int


def shape_of(c_in: int, c_out: int) -> Shape:
    """Read the sizes off a layer."""
    layer = BROConv2d(c_in, c_out, 3, device="meta")
    square, rank = layer.weight.shape[:2]
    return Shape(layer.in_channels, layer.out_channels, square, rank)


Panel = tuple[Shape, str, str, str]
PANELS: tuple[Panel, ...] = (
    (shape_of(8, 8), "c_in = c_out", "orthogonal", "W'W = W W' = I"),
    (shape_of(4, 8), "c_in < c_out", "an isometry: keeps every length", "W'W = I"),
    (shape_of(8, 4), "c_in > c_out", "a contraction: W keeps c_out directions", "W W' = I"),
)


def draw_shapes() -> str:
    """Draw V, the square reflector, the part that is used, and what it does to a vector of channels."""
    sheet = Sheet(41)
    for number, panel in enumerate(PANELS):
        _draw(sheet, 1.5 + 33.2 * number, panel)
    return svg(sheet.figure, "shapes")


def _draw(sheet: Sheet, left: float, panel: Panel) -> None:
    shape, title, words, law = panel
    u, top = SCALE, 31.0
    side = shape.square * u
    sheet.words(left + 15, 39, title, size=10.5, bold=True)
    sheet.words(left + 15, 35.7, words, size=8.5, colour=SOFT)
    # W, with the rows and columns that are dropped.
    x0, y0 = left + 5.2, top - side
    sheet.hatch(x0, y0, side, side)
    w, h = shape.c_in * u, shape.c_out * u
    sheet.panel(x0, top - h, w, h, fill("violet"), edge=stroke("violet"))
    sheet.words(x0 + w / 2, top - h / 2, "W", size=12, bold=True)
    # y on the left, x on the right.
    sheet.panel(left, top - h, u, h, fill("blue"), edge=stroke("blue"))
    sheet.words(left + u / 2, top - h - 1.8, "y", size=10)
    sheet.words(left + 3.6, top - h / 2, "=", size=11)
    x1 = x0 + side + 2.2
    sheet.panel(x1, top - w, u, w, fill("blue"), edge=stroke("blue"))
    sheet.words(x1 + u / 2, top - w - 1.8, "x", size=10)
    # V below: all of its rows take part in (V*V)^-1.
    y1 = y0 - 5.2
    sheet.words(left, y1, f"V: {shape.square} x {shape.rank}     {law}", size=8.5, anchor="left", colour=INK)
    sheet.words(
        left,
        y1 - 3.2,
        f"c_in = {shape.c_in}, c_out = {shape.c_out}, n = {shape.rank}",
        size=8.5,
        anchor="left",
        colour=SOFT,
    )
