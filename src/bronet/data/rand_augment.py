"""RandAugment (Cubuk et al., 2020) for a batch of byte images, as used for BRONet on CIFAR (App. B.3).

Fourteen operations with the ranges of torchvision's RandAugment and the arithmetic of Pillow (nearest neighbour, black
outside). As in torchvision, all operations have the same strength and only its direction is drawn; each image draws its
own operations. Autocontrast may differ from Pillow's by one grey level. Other borders, and fewer operations, are ours.
"""

import math
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import torch
from jaxtyping import Float32, Int64, UInt8
from torch import Tensor

from bronet.data.operations import (
    IDENTITY_MAP,
    MAX_LEVEL,
    Affine,
    autocontrast_table,
    blend,
    brightness_table,
    contrast_table,
    equalize_table,
    fixed_point,
    grey_levels,
    levels,
    posterize_table,
    rotation,
    shear,
    smoothed,
    solarize_table,
    translation,
    warp,
)
from bronet.data.randomness import Share
from bronet.errors import BronetError
from bronet.recipe.schema import Border, RandAugmentOps

LARGEST_MAGNITUDE = 30
LARGEST_SHEAR = 0.3
LARGEST_TRANSLATION = 150 / 331
"""Relative to the image's side."""
LARGEST_ROTATION = math.radians(30)
LARGEST_ENHANCEMENT = 0.9
"""Brightness, colour, contrast and sharpness are multiplied by 1 plus or minus this."""
BYTE_BITS = 8
LARGEST_POSTERIZATION = 4
"""The largest number of bits that are removed."""


class Op(IntEnum):
    """The operations, numbered as they are drawn."""

    IDENTITY = 0
    SHEAR_X = 1
    SHEAR_Y = 2
    TRANSLATE_X = 3
    TRANSLATE_Y = 4
    ROTATE = 5
    BRIGHTNESS = 6
    COLOR = 7
    CONTRAST = 8
    SHARPNESS = 9
    POSTERIZE = 10
    SOLARIZE = 11
    AUTOCONTRAST = 12
    EQUALIZE = 13


FIRST_PHOTOMETRIC = Op.BRIGHTNESS
"""This and all later operations change levels and colours, and move nothing."""


@dataclass(frozen=True, eq=False)
class OpTables:
    """The data that does not depend on the images: row 2 op + r is for operation op, reversed if r = 1.

    Operations without a direction have the same row twice. Maps and tables that an operation does not need are the
    identity.
    """

    maps: Int64[Tensor, "v 6"]
    tables: UInt8[Tensor, "v 256"]
    factors: Float32[Tensor, " v"]

    def to(self, device: torch.device) -> "OpTables":
        """Return the tables on `device`, without waiting for it."""
        maps, tables, factors = (t.to(device, non_blocking=True) for t in (self.maps, self.tables, self.factors))
        return OpTables(maps, tables, factors)


def rand_augment(
    images: UInt8[Tensor, "n c h w"],
    generator: torch.Generator,
    *,
    num_ops: int = 2,
    magnitude: int = 9,
    probability: float = 0.5,
    operations: RandAugmentOps = "all",
    border: Border = "black",
    share: Share | None = None,
) -> UInt8[Tensor, "n c h w"]:
    """Return each image, with `probability`, after `num_ops` operations drawn uniformly with replacement.

    `magnitude` is a bin in 0 .. 30. Nothing waits for the device, so the cost does not depend on what is drawn.
    """
    if images.shape[1] not in (1, 3):
        raise BronetError(f"channels of images for RandAugment must be 1 or 3, got {images.shape[1]}")
    if num_ops < 0:
        raise BronetError(f"operations of RandAugment must be at least 0, got {num_ops}")
    if not 0 <= probability <= 1:
        raise BronetError(f"probability of RandAugment must satisfy 0 <= p <= 1, got {probability}")
    share, device = share or Share.whole(len(images)), images.device
    n = share.total
    fixed = op_tables(magnitude, *images.shape[-2:]).to(device)
    chosen = torch.rand(n, generator=generator, device=device) < probability
    first = int(FIRST_PHOTOMETRIC) if operations == "photometric" else 0
    ops = torch.randint(first, len(Op), (num_ops, n), generator=generator, device=device)
    reversals = torch.randint(2, (num_ops, n), generator=generator, device=device)
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
    table = torch.where(_where_op_is(op, Op.CONTRAST, 3), contrast_table(grey, factor), table)
    table = torch.where(_where_op_is(op, Op.AUTOCONTRAST, 3), autocontrast_table(values), table)
    table = torch.where(_where_op_is(op, Op.EQUALIZE, 3), equalize_table(values), table)
    toned = table.gather(2, values.flatten(2).long()).view_as(moved)
    is_color, is_sharpness = _where_op_is(op, Op.COLOR, 4), _where_op_is(op, Op.SHARPNESS, 4)
    dull = torch.where(is_color, grey, smoothed(values))
    return torch.where(is_color | is_sharpness, blend(dull, values, factor.view(-1, 1, 1, 1)), toned)


@lru_cache(maxsize=8)
def op_tables(magnitude: int, height: int, width: int) -> OpTables:
    """Return, on the CPU, the maps, level tables and factors of all operations at a magnitude in 0 .. 30."""
    if not 0 <= magnitude <= LARGEST_MAGNITUDE:
        raise BronetError(f"magnitude of RandAugment must satisfy 0 <= m <= {LARGEST_MAGNITUDE}, got {magnitude}")
    strength = magnitude / LARGEST_MAGNITUDE
    variants = [(op, direction * strength) for op in Op for direction in (1, -1)]
    return OpTables(
        maps=torch.tensor([fixed_point(_affine_map(op, s, height, width)) for op, s in variants]),
        tables=torch.stack([_level_table(op, s) for op, s in variants]),
        factors=torch.tensor([1 + LARGEST_ENHANCEMENT * s for _, s in variants], dtype=torch.float32),
    )


def _affine_map(op: Op, strength: float, height: int, width: int) -> Affine:
    """Return the map of a geometric operation at a strength in -1 .. 1, the identity for all others."""
    match op:
        case Op.SHEAR_X:
            return shear(x=LARGEST_SHEAR * strength)
        case Op.SHEAR_Y:
            return shear(y=LARGEST_SHEAR * strength)
        case Op.TRANSLATE_X:
            return translation(x=int(LARGEST_TRANSLATION * width * strength))
        case Op.TRANSLATE_Y:
            return translation(y=int(LARGEST_TRANSLATION * height * strength))
        case Op.ROTATE:
            return rotation(LARGEST_ROTATION * strength, height, width)
        case _:
            return IDENTITY_MAP


def _level_table(op: Op, strength: float) -> UInt8[Tensor, "256"]:
    """Return the table of an operation that needs only the level, the identity for all others."""
    match op:
        case Op.BRIGHTNESS:
            return brightness_table(1 + LARGEST_ENHANCEMENT * strength)
        case Op.POSTERIZE:
            return posterize_table(BYTE_BITS - round(LARGEST_POSTERIZATION * abs(strength)))
        case Op.SOLARIZE:
            return solarize_table(MAX_LEVEL - MAX_LEVEL * abs(strength))
        case _:
            return levels().to(torch.uint8)


def _where_op_is(op: Int64[Tensor, " n"], wanted: Op, ndim: int) -> Tensor:
    """Return op == wanted, with as many dimensions as the tensors it selects from."""
    return (op == int(wanted)).view(-1, *[1] * (ndim - 1))
