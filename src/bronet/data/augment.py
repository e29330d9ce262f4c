"""Random crop, flip and RandAugment of a batch of stored images (App. B.3), on the device that holds them.

Every image draws its own crop, flip and operations from a generator on the images' device. There is no loop over
images, and nothing waits for the device. CPU and CUDA generators draw different bits.

RandAugment (Cubuk et al., 2020) has fourteen operations with the ranges of torchvision's RandAugment and the arithmetic
of Pillow (nearest neighbour, black outside). As in torchvision, all operations have the same strength and only its
direction is drawn. Autocontrast may differ from Pillow's by one grey level. Other borders, and fewer operations, are
ours.
"""

import math
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Float32, Int64, Shaped, UInt8
from torch import Tensor

from bronet.data.operations import (
    LEVELS,
    MAX_LEVEL,
    Affine,
    autocontrast_table,
    blend,
    contrast_table,
    equalize_table,
    fixed_point,
    gather_pixels,
    grey_levels,
    smoothed,
    warp,
)
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
    share = share or BatchShare.of_rank(len(images))
    if data.crop_padding:
        images = random_crop(images, data.crop_padding, generator, border=data.border, share=share)
    if data.flip:
        images = random_flip(images, generator, share=share)
    if data.randaugment_probability:
        if data.spec().scale != BYTE_SCALE:
            got = f"got scale {data.spec().scale}; set data.randaugment_probability to 0 for this data set"
            raise BronetError(f"RandAugment needs pixels of scale {BYTE_SCALE}, {got}")
        images = rand_augment(
            images,
            generator,
            probability=data.randaugment_probability,
            operations=data.randaugment_ops,
            border=data.border,
            share=share,
        )
    return images


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
    shift = share.take(drawn, dim=1)
    row = torch.arange(height, device=device).view(1, height, 1) + shift[0]
    column = torch.arange(width, device=device).view(1, 1, width) + shift[1]
    return gather_pixels(images, row, column, border=border)


def random_flip(
    images: Shaped[Tensor, "n c h w"], generator: torch.Generator, *, share: BatchShare | None = None
) -> Shaped[Tensor, "n c h w"]:
    """Return each image mirrored left to right with probability 1/2."""
    share = share or BatchShare.of_rank(len(images))
    mirrored = torch.randint(0, 2, (share.total, 1, 1, 1), generator=generator, device=images.device)
    return torch.where(share.take(mirrored).bool(), images.flip(-1), images)


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
    for op, reverse in zip(ops.unbind(), reversals.unbind(), strict=True):
        wanted = torch.where(chosen, op, int(Op.IDENTITY))
        images = apply_ops(images, share.take(wanted), share.take(reverse), fixed, border=border)
    return images


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
    moved = warp(images, fixed.maps[variant], border=border)
    # All results that depend on images are computed for all images and then selected: nothing waits for the device.
    values = moved.int()
    grey = grey_levels(values)
    table = fixed.tables[variant].unsqueeze(1)
    kind = op.view(-1, 1, 1)
    table = torch.where(kind == Op.CONTRAST, contrast_table(grey, factor), table)
    table = torch.where(kind == Op.AUTOCONTRAST, autocontrast_table(values), table)
    table = torch.where(kind == Op.EQUALIZE, equalize_table(values), table)
    toned = table.gather(2, values.flatten(2).long()).view_as(moved)
    is_color, is_sharpness = kind.unsqueeze(3) == Op.COLOR, kind.unsqueeze(3) == Op.SHARPNESS
    dull = torch.where(is_color, grey, smoothed(values))
    return torch.where(is_color | is_sharpness, blend(dull, values, factor.view(-1, 1, 1, 1)), toned)


@lru_cache(maxsize=8)
def op_tables(magnitude: int, height: int, width: int) -> OpTables:
    """Return, on the CPU, the maps, level tables and factors of all operations at a magnitude in 0 .. 30."""
    strength = magnitude / LARGEST_MAGNITUDE
    variants = [(op, direction * strength) for op in Op for direction in (1, -1)]
    maps, tables = zip(*(_map_and_table(op, s, height, width) for op, s in variants), strict=True)
    factors = torch.tensor([1 + LARGEST_ENHANCEMENT * s for _, s in variants], dtype=torch.float32)
    return OpTables(torch.tensor([fixed_point(map) for map in maps]), torch.stack(tables), factors)


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
            table = blend(torch.zeros_like(level), level, torch.tensor(1 + LARGEST_ENHANCEMENT * strength))
        case Op.POSTERIZE:
            dropped = round(LARGEST_POSTERIZATION * abs(strength))
            table = (level >> dropped << dropped).to(torch.uint8)
        case Op.SOLARIZE:
            inverted = level >= math.ceil(MAX_LEVEL - MAX_LEVEL * abs(strength))
            table = torch.where(inverted, MAX_LEVEL - level, level).to(torch.uint8)
    return affine, table
