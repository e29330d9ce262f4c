"""The operations of augmentation on batches of images: moving pixels, and changing their levels (App. B.3).

Moving copies the nearest pixel and never interpolates. A map is six numbers in fixed point, so the result is the same
on every device, and the same as Pillow's for images of up to 32,767 pixels a side, if pixels from outside are black.
Changing levels repeats Pillow's arithmetic to the bit, except that autocontrast divides exactly where Pillow multiplies
by a rounded quotient, which may differ by one level.
"""

import math

import torch
from jaxtyping import Float32, Int, Int32, Int64, Shaped, UInt8
from torch import Tensor

from bronet.recipe.schema import Border

FRACTION_BITS = 16
ONE = 1 << FRACTION_BITS

Affine = tuple[float, float, float, float, float, float]
"""(a, b, c, d, e, f): the pixel with centre (x, y) shows the input at (a x + b y + c, d x + e y + f)."""

LEVELS = 256
MAX_LEVEL = LEVELS - 1
LUMA_WEIGHTS = (19595, 38470, 7471)
"""Weights 0.299, 0.587, 0.114 of red, green and blue (ITU-R 601-2) in units of 2^-16, with sum 2^16."""
LUMA_BITS = 16
SMOOTH_CENTRE = 5
SMOOTH_SUM = SMOOTH_CENTRE + 8
"""The smoothing kernel is 3 x 3 ones with 5 in the middle."""


def gather_pixels(
    images: Shaped[Tensor, "n c h w"],
    row: Int64[Tensor, "n #h #w"],
    column: Int64[Tensor, "n #h #w"],
    *,
    border: Border = "black",
) -> Shaped[Tensor, "n c h w"]:
    """Return y with y[n, :, i, j] = images[n, :, row[n, i, j], column[n, i, j]], without waiting for the device.

    Outside the image, `border` says whether y is zero, shows the nearest pixel of the edge, or shows the image mirrored
    at its first or last row or column. `row` and `column` are broadcast against each other to (n, h, w).
    """
    n, channels, height, width = images.shape
    if border == "mirror":
        row, column = _mirrored(row, height), _mirrored(column, width)
    source = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
    flat = source.view(n, 1, height * width).expand(-1, channels, -1)
    moved = images.reshape(n, channels, height * width).gather(2, flat).view_as(images)
    if border != "black":
        return moved
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    return moved.masked_fill(~inside.unsqueeze(1), 0)


def _mirrored(position: Int64[Tensor, "n #h #w"], size: int) -> Int64[Tensor, "n #h #w"]:
    """Return 0 .. size - 1 for any position: ... 2 1 0 1 2 ... at the first pixel, and so at the last."""
    period = max(1, 2 * (size - 1))
    phase = position % period
    return torch.minimum(phase, period - phase)


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
    # The shift rounds down, so a point left of the image is outside it, not in its first pixel.
    row, column = (d * x + e * y + f) >> FRACTION_BITS, (a * x + b * y + c) >> FRACTION_BITS
    return gather_pixels(images, row, column, border=border)


def contrast_table(grey: Int32[Tensor, "n 1 h w"], factor: Float32[Tensor, " n"]) -> UInt8[Tensor, "n 1 256"]:
    """Per image, scale the distance of a level from the image's mean grey by `factor`."""
    pixels = grey.shape[-2] * grey.shape[-1]
    # Twice the mean plus one, halved: the mean rounded to nearest, halves upwards, in integers.
    mean = (2 * grey.sum((2, 3)) + pixels) // (2 * pixels)
    return blend(mean.unsqueeze(-1), torch.arange(LEVELS, device=grey.device), factor.view(-1, 1, 1))


def autocontrast_table(images: Int32[Tensor, "n c h w"]) -> UInt8[Tensor, "n c 256"]:
    """Per image and channel, stretch the darkest level to 0, the brightest to 255; a flat channel stays."""
    level = torch.arange(LEVELS, device=images.device)
    low, high = images.amin((2, 3)).unsqueeze(-1), images.amax((2, 3)).unsqueeze(-1)
    stretched = (level - low) * MAX_LEVEL // (high - low).clamp(min=1)
    return torch.where(high > low, stretched, level).clamp(0, MAX_LEVEL).to(torch.uint8)


def equalize_table(images: Int32[Tensor, "n c h w"]) -> UInt8[Tensor, "n c 256"]:
    """Per image and channel, map the levels so that their histogram becomes as even as it can.

    Fewer than 255 pixels below the brightest level leave the channel as it is, as in Pillow: an 8 x 8 image
    never changes.
    """
    flat = images.flatten(2).long()
    one = torch.ones((), dtype=torch.int64, device=images.device)
    counts = torch.zeros(*flat.shape[:2], LEVELS, dtype=torch.int64, device=images.device)
    counts.scatter_add_(2, flat, one.expand_as(flat))
    brightest = counts.gather(2, flat.amax(2, keepdim=True))
    step = (flat.shape[2] - brightest) // MAX_LEVEL
    below = counts.cumsum(2) - counts
    evened, same = (step // 2 + below) // step.clamp(min=1), torch.arange(LEVELS, device=images.device)
    return torch.where(step > 0, evened, same).clamp(max=MAX_LEVEL).to(torch.uint8)


def grey_levels(images: Int32[Tensor, "n c h w"]) -> Int32[Tensor, "n 1 h w"]:
    """Return the luma of images with three channels; a single channel is its own."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unsqueeze(2).unbind(1)
    weighted = red * LUMA_WEIGHTS[0] + green * LUMA_WEIGHTS[1] + blue * LUMA_WEIGHTS[2]
    return (weighted + (1 << (LUMA_BITS - 1))) >> LUMA_BITS


def smoothed(images: Int32[Tensor, "n c h w"]) -> Int32[Tensor, "n c h w"]:
    """Return the weighted mean of 3 x 3 neighbours, rounded to nearest; the border of one pixel is kept."""
    rows = images[..., :-2, :] + images[..., 1:-1, :] + images[..., 2:, :]
    around = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    total = around + (SMOOTH_CENTRE - 1) * images[..., 1:-1, 1:-1]
    smooth = images.clone()
    smooth[..., 1:-1, 1:-1] = (2 * total + SMOOTH_SUM) // (2 * SMOOTH_SUM)
    return smooth


def blend(dull: Int[Tensor, "*#s"], bright: Int[Tensor, "*#s"], factor: Float32[Tensor, "*#s"]) -> UInt8[Tensor, "*s"]:
    """Return dull + factor * (bright - dull), clipped to 0 .. 255 and rounded down."""
    mixed = dull + factor * (bright - dull)
    return mixed.clamp(0, MAX_LEVEL).to(torch.uint8)
