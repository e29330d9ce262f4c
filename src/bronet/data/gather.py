"""Move pixels: every output pixel names the input pixel it shows; a border says what it shows of the outside.

The one primitive of cropping and of RandAugment's geometric operations (App. B trains with both): pixels are
copied, never interpolated, so it works on bytes and floats alike and gives the same bits on every device.
"""

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from bronet.recipe.schema import Border


def gather_pixels(
    images: Shaped[Tensor, "n c h w"],
    row: Int64[Tensor, "n #h #w"],
    column: Int64[Tensor, "n #h #w"],
    *,
    border: Border = "black",
) -> Shaped[Tensor, "n c h w"]:
    """Return y with y[n, :, i, j] = images[n, :, row[n, i, j], column[n, i, j]].

    Where that is outside y is zero, or shows the nearest pixel of the edge, or the image mirrored in its first or last
    row or column of pixels, as often as it takes. `row` and `column` are broadcast against each other to (n, h, w).
    Nothing waits for the device.
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
