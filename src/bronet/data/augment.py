"""Random crop, flip and RandAugment of a batch of stored images (App. B.3), on the device that holds them.

Every image draws its own crop, flip and operations from a generator on the images' device. There is no loop over
images, and nothing waits for the device. CPU and CUDA generators draw different bits.

RandAugment (Cubuk et al., 2020) has fourteen operations with the ranges of torchvision's RandAugment and the arithmetic
of Pillow (nearest neighbour, black outside), to the bit for images of up to 32,767 pixels a side: maps are in fixed
point, and levels change in integers. Only autocontrast divides exactly where Pillow multiplies by a rounded quotient,
and may differ by one level. As in torchvision, all operations have the same strength and only its direction is drawn.
Other borders, and fewer operations, are ours.
"""

import math
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Float32, Int, Int32, Int64, Shaped, UInt8
from torch import Tensor

from bronet.data.randomness import BatchShare
from bronet.errors import BronetError
from bronet.recipe.schema import BYTE_SCALE, Border, DataRecipe, RandAugmentOps

OPERATIONS, MAGNITUDE, LARGEST_MAGNITUDE = 2, 9, 30
"""How many operations an image gets, and how strong they are; the strongest would be 30."""
LARGEST_SHEAR = 0.3
LARGEST_TRANSLATION = 150 / 331
"""Relative to the image's side."""
LARGEST_ROTATION = math.radians(30)
LARGEST_ENHANCEMENT = 0.9
"""Brightness, colour, contrast and sharpness are multiplied by 1 plus or minus this."""
LARGEST_POSTERIZATION = 4
"""The largest number of bits that are removed."""

LEVELS = 256
MAX_LEVEL = LEVELS - 1
FRACTION_BITS = 16
ONE = 1 << FRACTION_BITS
LUMA_WEIGHTS = (19595, 38470, 7471)
"""Weights 0.299, 0.587, 0.114 of red, green and blue (ITU-R 601-2) in units of 2^-16, with sum 2^16."""
SMOOTH_CENTRE = 5
SMOOTH_SUM = SMOOTH_CENTRE + 8
"""The smoothing kernel is 3 x 3 ones with 5 in the middle."""

Affine = tuple[float, float, float, float, float, float]
"""(a, b, c, d, e, f): the pixel with centre (x, y) shows the input at (a x + b y + c, d x + e y + f)."""

Op = IntEnum(
    "Op",
    "IDENTITY SHEAR_X SHEAR_Y TRANSLATE_X TRANSLATE_Y ROTATE "
    "BRIGHTNESS COLOR CONTRAST SHARPNESS POSTERIZE SOLARIZE AUTOCONTRAST EQUALIZE",
    start=0,
)
"""The operations, numbered as they are drawn; those of the second line move nothing."""


def augment(
    images: UInt8[Tensor, "n c h w"], generator: torch.Generator, data: DataRecipe, *, share: BatchShare | None = None
) -> UInt8[Tensor, "n c h w"]:
    """Return the data set's images cropped, then flipped, then RandAugmented, as bytes of the same scale.

    RandAugment's operations assume the full range of a byte, so images of another scale (the digits: 16) refuse it.
    With a `share`, the images are that part of a larger batch, and the result is the same as within it.
    """
    if data.crop_padding:
        images = random_crop(images, data.crop_padding, generator, border=data.border, share=share)
    if data.flip:
        images = random_flip(images, generator, share=share)
    if not data.randaugment_probability:
        return images
    if (scale := data.spec().scale) != BYTE_SCALE:
        remedy = "set data.randaugment_probability to 0 for this data set"
        raise BronetError(f"RandAugment needs pixels of scale {BYTE_SCALE}, got scale {scale}; {remedy}")
    probability, operations = data.randaugment_probability, data.randaugment_ops
    return rand_augment(
        images, generator, probability=probability, operations=operations, border=data.border, share=share
    )


def random_crop(
    images: Shaped[Tensor, "n c h w"],
    padding: int,
    generator: torch.Generator,
    *,
    border: Border = "black",
    share: BatchShare | None = None,
) -> Shaped[Tensor, "n c h w"]:
    """Return a uniformly placed window, of the image's size, of each image padded on all sides."""
    n, _, height, width = images.shape
    device, share = images.device, share or BatchShare.of_rank(n)
    drawn = torch.randint(-padding, padding + 1, (2, share.total, 1, 1), generator=generator, device=device)
    down, right = share.take(drawn, dim=1)
    row = torch.arange(height, device=device).view(1, height, 1) + down
    column = torch.arange(width, device=device).view(1, 1, width) + right
    return gather_pixels(images, row, column, border=border)


def random_flip(
    images: Shaped[Tensor, "n c h w"], generator: torch.Generator, *, share: BatchShare | None = None
) -> Shaped[Tensor, "n c h w"]:
    """Return each image mirrored left to right with probability 1/2."""
    share = share or BatchShare.of_rank(len(images))
    mirrored = torch.randint(0, 2, (share.total, 1, 1, 1), generator=generator, device=images.device)
    return torch.where(share.take(mirrored).bool(), images.flip(-1), images)


def rand_augment(
    images: UInt8[Tensor, "n c h w"],
    generator: torch.Generator,
    *,
    probability: float = 0.5,
    operations: RandAugmentOps = "all",
    border: Border = "black",
    share: BatchShare | None = None,
) -> UInt8[Tensor, "n c h w"]:
    """Return each image, with `probability`, after two operations drawn uniformly with replacement.

    Nothing waits for the device, so the cost does not depend on what is drawn.
    """
    if images.shape[1] not in (1, 3):
        raise BronetError(f"channels of images for RandAugment must be 1 or 3, got {images.shape[1]}")
    share, device = share or BatchShare.of_rank(len(images)), images.device
    n = share.total
    fixed = op_tables(MAGNITUDE, *images.shape[-2:]).to(device)
    chosen = torch.rand(n, generator=generator, device=device) < probability
    first = int(Op.BRIGHTNESS) if operations == "photometric" else 0
    ops = torch.randint(first, len(Op), (OPERATIONS, n), generator=generator, device=device)
    reversals = torch.randint(2, (OPERATIONS, n), generator=generator, device=device)
    for op, reverse in zip(ops, reversals, strict=True):
        wanted = torch.where(chosen, op, int(Op.IDENTITY))
        images = apply_ops(images, share.take(wanted), share.take(reverse), fixed, border=border)
    return images


class OpTables(NamedTuple):
    """The data that does not depend on the images: row 2 op + r is for operation op, reversed if r = 1.

    Operations without a direction have the same row twice. Maps and tables that an operation does not need are the
    identity.
    """

    maps: Int64[Tensor, "v 6"]
    tables: UInt8[Tensor, "v 256"]
    factors: Float32[Tensor, " v"]

    def to(self, device: torch.device) -> "OpTables":
        """Return the tables on `device`, without waiting for it."""
        return OpTables(*(tensor.to(device, non_blocking=True) for tensor in self))


@lru_cache(maxsize=8)
def op_tables(magnitude: int, height: int, width: int) -> OpTables:
    """Return, on the CPU, the maps, level tables and factors of all operations at a magnitude in 0 .. 30."""
    strength = magnitude / LARGEST_MAGNITUDE
    variants = [(op, direction * strength) for op in Op for direction in (1, -1)]
    maps, tables = zip(*(_map_and_table(op, s, height, width) for op, s in variants), strict=True)
    factors = torch.tensor([1 + LARGEST_ENHANCEMENT * s for _, s in variants], dtype=torch.float32)
    return OpTables(torch.tensor([_fixed_point(map) for map in maps]), torch.stack(tables), factors)


def _map_and_table(op: Op, strength: float, height: int, width: int) -> tuple[Affine, UInt8[Tensor, "256"]]:
    """Return how an operation of a strength in -1 .. 1 moves pixels, and what it makes of each level."""
    level = torch.arange(LEVELS)
    affine, table = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0), level.to(torch.uint8)
    match op:
        case Op.SHEAR_X:
            affine = (1.0, LARGEST_SHEAR * strength, 0.0, 0.0, 1.0, 0.0)
        case Op.SHEAR_Y:
            affine = (1.0, 0.0, 0.0, LARGEST_SHEAR * strength, 1.0, 0.0)
        case Op.TRANSLATE_X:
            affine = (1.0, 0.0, -int(LARGEST_TRANSLATION * width * strength), 0.0, 1.0, 0.0)
        case Op.TRANSLATE_Y:
            affine = (1.0, 0.0, 0.0, 0.0, 1.0, -int(LARGEST_TRANSLATION * height * strength))
        case Op.ROTATE:  # counter-clockwise about the centre; rows count downwards
            cosine, sine = math.cos(LARGEST_ROTATION * strength), math.sin(LARGEST_ROTATION * strength)
            x, y = width / 2, height / 2
            affine = (cosine, -sine, x - cosine * x + sine * y, sine, cosine, y - sine * x - cosine * y)
        case Op.BRIGHTNESS:
            table = _blend(torch.zeros_like(level), level, torch.tensor(1 + LARGEST_ENHANCEMENT * strength))
        case Op.POSTERIZE:
            dropped = round(LARGEST_POSTERIZATION * abs(strength))
            table = (level >> dropped << dropped).to(torch.uint8)
        case Op.SOLARIZE:
            inverted = level >= math.ceil(MAX_LEVEL - MAX_LEVEL * abs(strength))
            table = torch.where(inverted, MAX_LEVEL - level, level).to(torch.uint8)
    return affine, table


def _fixed_point(affine: Affine) -> tuple[int, ...]:
    """Return the map of pixel numbers instead of centres, in units of 2^-16 pixels, rounded to nearest."""
    a, b, c, d, e, f = affine
    numbers = (a, b, c + (a + b) / 2, d, e, f + (d + e) / 2)
    return tuple(math.floor(number * ONE + 0.5) for number in numbers)


def apply_ops(
    images: UInt8[Tensor, "n c h w"],
    op: Int64[Tensor, " n"],
    reverse: Int64[Tensor, " n"],
    fixed: OpTables,
    *,
    border: Border = "black",
) -> UInt8[Tensor, "n c h w"]:
    """Return images[i] after the operation op[i], in its negative direction where reverse[i] is 1."""
    variant = 2 * op + reverse
    factor = fixed.factors[variant]
    moved = _warp(images, fixed.maps[variant], border=border)
    # All results that depend on images are computed for all images and then selected: nothing waits for the device.
    values = moved.int()
    grey = _grey_levels(values)
    table = fixed.tables[variant].unsqueeze(1)
    kind = op.view(-1, 1, 1)
    table = torch.where(kind == Op.CONTRAST, _contrast_table(grey, factor), table)
    table = torch.where(kind == Op.AUTOCONTRAST, _autocontrast_table(values), table)
    table = torch.where(kind == Op.EQUALIZE, _equalize_table(values), table)
    toned = table.gather(2, values.flatten(2).long()).view_as(moved)
    is_color, is_sharpness = kind.unsqueeze(3) == Op.COLOR, kind.unsqueeze(3) == Op.SHARPNESS
    dull = torch.where(is_color, grey, _smoothed(values))
    return torch.where(is_color | is_sharpness, _blend(dull, values, factor.view(-1, 1, 1, 1)), toned)


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


def _warp(
    images: Shaped[Tensor, "n c h w"], maps: Int64[Tensor, "n 6"], *, border: Border
) -> Shaped[Tensor, "n c h w"]:
    """Return every image under its own fixed-point map."""
    height, width = images.shape[-2:]
    y = torch.arange(height, device=images.device).view(1, height, 1)
    x = torch.arange(width, device=images.device).view(1, 1, width)
    a, b, c, d, e, f = maps.view(-1, 6, 1, 1).unbind(1)
    # The shift rounds down, so a point left of the image is outside it, not in its first pixel.
    row, column = (d * x + e * y + f) >> FRACTION_BITS, (a * x + b * y + c) >> FRACTION_BITS
    return gather_pixels(images, row, column, border=border)


def _contrast_table(grey: Int32[Tensor, "n 1 h w"], factor: Float32[Tensor, " n"]) -> UInt8[Tensor, "n 1 256"]:
    """Per image, scale the distance of a level from the image's mean grey by `factor`."""
    pixels = grey.shape[-2] * grey.shape[-1]
    # Twice the mean plus one, halved: the mean rounded to nearest, halves upwards, in integers.
    mean = (2 * grey.sum((2, 3)) + pixels) // (2 * pixels)
    return _blend(mean.unsqueeze(-1), torch.arange(LEVELS, device=grey.device), factor.view(-1, 1, 1))


def _autocontrast_table(images: Int32[Tensor, "n c h w"]) -> UInt8[Tensor, "n c 256"]:
    """Per image and channel, stretch the darkest level to 0, the brightest to 255; a flat channel stays."""
    level = torch.arange(LEVELS, device=images.device)
    low, high = images.amin((2, 3)).unsqueeze(-1), images.amax((2, 3)).unsqueeze(-1)
    stretched = (level - low) * MAX_LEVEL // (high - low).clamp(min=1)
    return torch.where(high > low, stretched, level).clamp(0, MAX_LEVEL).to(torch.uint8)


def _equalize_table(images: Int32[Tensor, "n c h w"]) -> UInt8[Tensor, "n c 256"]:
    """Per image and channel, map the levels so that their histogram becomes as even as it can.

    Fewer than 255 pixels below the brightest level leave the channel as it is, as in Pillow: an 8 x 8 image
    never changes.
    """
    flat = images.flatten(2).long()
    counts = torch.zeros(*flat.shape[:2], LEVELS, dtype=torch.int64, device=images.device)
    counts.scatter_add_(2, flat, flat.new_ones(()).expand_as(flat))
    brightest = counts.gather(2, flat.amax(2, keepdim=True))
    step = (flat.shape[2] - brightest) // MAX_LEVEL
    below = counts.cumsum(2) - counts
    evened, same = (step // 2 + below) // step.clamp(min=1), torch.arange(LEVELS, device=images.device)
    return torch.where(step > 0, evened, same).clamp(max=MAX_LEVEL).to(torch.uint8)


def _grey_levels(images: Int32[Tensor, "n c h w"]) -> Int32[Tensor, "n 1 h w"]:
    """Return the luma of images with three channels; a single channel is its own."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unsqueeze(2).unbind(1)
    weighted = red * LUMA_WEIGHTS[0] + green * LUMA_WEIGHTS[1] + blue * LUMA_WEIGHTS[2]
    return (weighted + ONE // 2) >> FRACTION_BITS


def _smoothed(images: Int32[Tensor, "n c h w"]) -> Int32[Tensor, "n c h w"]:
    """Return the weighted mean of 3 x 3 neighbours, rounded to nearest; the border of one pixel is kept."""
    rows = images[..., :-2, :] + images[..., 1:-1, :] + images[..., 2:, :]
    around = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    total = around + (SMOOTH_CENTRE - 1) * images[..., 1:-1, 1:-1]
    smooth = images.clone()
    smooth[..., 1:-1, 1:-1] = (2 * total + SMOOTH_SUM) // (2 * SMOOTH_SUM)
    return smooth


def _blend(dull: Int[Tensor, "*#s"], bright: Int[Tensor, "*#s"], factor: Float32[Tensor, "*#s"]) -> UInt8[Tensor, "*s"]:
    """Return dull + factor * (bright - dull), clipped to 0 .. 255 and rounded down."""
    mixed = dull + factor * (bright - dull)
    return mixed.clamp(0, MAX_LEVEL).to(torch.uint8)
