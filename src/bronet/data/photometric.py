"""Changes of grey levels with Pillow's arithmetic, for RandAugment (App. B.3).

Most are a table of 256 levels, fixed or per image and channel; colour and sharpness mix each pixel with a
duller image. All match Pillow to the bit, except that autocontrast divides exactly where Pillow multiplies by
a rounded quotient: one grey level apart at worst.
"""

import math

import torch
from jaxtyping import Float32, Int, Int32, Int64, UInt8
from torch import Tensor

LEVELS = 256
MAX_LEVEL = LEVELS - 1
LUMA_WEIGHTS = (19595, 38470, 7471)
"""Weights 0.299, 0.587, 0.114 of red, green and blue (ITU-R 601-2) in units of 2^-16, with sum 2^16."""
LUMA_BITS = 16
SMOOTH_CENTRE = 5
SMOOTH_SUM = SMOOTH_CENTRE + 8
"""The smoothing kernel is 3 x 3 ones with 5 in the middle."""


def levels(device: torch.device | str = "cpu") -> Int64[Tensor, "256"]:
    """Return the table that changes nothing."""
    return torch.arange(LEVELS, device=device)


def solarize_table(threshold: float) -> UInt8[Tensor, "256"]:
    """Invert the levels from `threshold` upwards."""
    level = levels()
    return torch.where(level < math.ceil(threshold), level, MAX_LEVEL - level).to(torch.uint8)


def posterize_table(bits: int) -> UInt8[Tensor, "256"]:
    """Keep the highest `bits` bits of a level."""
    return (levels() & (LEVELS - (1 << (8 - bits)))).to(torch.uint8)


def brightness_table(factor: float) -> UInt8[Tensor, "256"]:
    """Multiply a level by `factor`."""
    return blend(torch.zeros(LEVELS, dtype=torch.int64), levels(), torch.tensor(factor, dtype=torch.float32))


def contrast_table(grey: Int32[Tensor, "n 1 h w"], factor: Float32[Tensor, " n"]) -> UInt8[Tensor, "n 1 256"]:
    """Per image, scale the distance of a level from the image's mean grey by `factor`."""
    pixels = grey.shape[-2] * grey.shape[-1]
    # Twice the mean plus one, halved: the mean rounded to nearest, halves upwards, in integers.
    mean = (2 * grey.sum((2, 3)) + pixels) // (2 * pixels)
    return blend(mean.unsqueeze(-1), levels(grey.device), factor.view(-1, 1, 1))


def autocontrast_table(images: Int32[Tensor, "n c h w"]) -> UInt8[Tensor, "n c 256"]:
    """Per image and channel, stretch the darkest level to 0, the brightest to 255; a flat channel stays."""
    level = levels(images.device)
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
    evened = (step // 2 + below) // step.clamp(min=1)
    return torch.where(step > 0, evened, levels(images.device)).clamp(max=MAX_LEVEL).to(torch.uint8)


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
    """Return dull + factor * (bright - dull), clipped to 0 .. 255, with its fraction cut off."""
    mixed = dull + factor * (bright - dull)
    return mixed.clamp(0, MAX_LEVEL).to(torch.uint8)
