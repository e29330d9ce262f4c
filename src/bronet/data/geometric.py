"""Affine maps of images by copying the nearest pixel: shear, translation, rotation (App. B.3: RandAugment).

A map is six numbers in fixed point, so the pixel it picks is a matter of integers: the same on every device,
and the same as Pillow's for images of up to 32,767 pixels a side, if pixels from outside are black.
"""

import math

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from bronet.data.gather import gather_pixels
from bronet.recipe.schema import Border

FRACTION_BITS = 16
ONE = 1 << FRACTION_BITS

Affine = tuple[float, float, float, float, float, float]
"""(a, b, c, d, e, f): the pixel with centre (x, y) shows the input at (a x + b y + c, d x + e y + f)."""

IDENTITY_MAP: Affine = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)


def shear(*, x: float = 0.0, y: float = 0.0) -> Affine:
    """Return the shear that reads `x` columns further right per row and `y` rows further down per column."""
    return (1.0, x, 0.0, y, 1.0, 0.0)


def translation(*, x: int = 0, y: int = 0) -> Affine:
    """Return the map that moves an image `x` pixels to the right and `y` pixels down."""
    return (1.0, 0.0, -float(x), 0.0, 1.0, -float(y))


def rotation(radians: float, height: int, width: int) -> Affine:
    """Return the counter-clockwise rotation about the centre of an image (rows count downwards)."""
    cosine, sine = math.cos(radians), math.sin(radians)
    x, y = width / 2, height / 2
    return (cosine, -sine, x - cosine * x + sine * y, sine, cosine, y - sine * x - cosine * y)


def fixed_point(affine: Affine) -> tuple[int, ...]:
    """Return the map of pixel numbers instead of centres, in units of 2^-16 pixels, rounded to nearest."""
    a, b, c, d, e, f = affine
    numbers = (a, b, c + (a + b) / 2, d, e, f + (d + e) / 2)
    return tuple(math.floor(number * ONE + 0.5) for number in numbers)


def warp(
    images: Shaped[Tensor, "n c h w"], maps: Int64[Tensor, "n 6"], *, border: Border = "black"
) -> Shaped[Tensor, "n c h w"]:
    """Return every image under its own fixed-point map."""
    height, width = images.shape[-2:]
    y = torch.arange(height, device=images.device).view(1, height, 1)
    x = torch.arange(width, device=images.device).view(1, 1, width)
    a, b, c, d, e, f = maps.view(-1, 6, 1, 1).unbind(1)
    # The shift rounds downwards, so a point left of the image is outside it, not in its first pixel.
    row, column = (d * x + e * y + f) >> FRACTION_BITS, (a * x + b * y + c) >> FRACTION_BITS
    return gather_pixels(images, row, column, border=border)
