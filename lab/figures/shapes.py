"""Orthogonal where channels are kept, semi-orthogonal where they are not: which part of the reflector is used.

The sizes are those of layers that are built; the drawing is to scale.
"""

from dataclasses import dataclass

from bronet.layers import BROConv2d
from lab.figures.canvas import Sheet, svg
from lab.figures.palette import INK, SOFT, fill, stroke

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
