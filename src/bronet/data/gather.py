"""Move pixels: every output pixel names the input pixel it shows, or none (then it is black).

The one primitive of cropping and of RandAugment's geometric operations (App. B trains with both): pixels are
copied, never interpolated, so it works on bytes and floats alike and gives the same bits on every device.
"""

from jaxtyping import Int64, Shaped
from torch import Tensor


def gather_pixels(
    images: Shaped[Tensor, "n c h w"], row: Int64[Tensor, "n #h #w"], column: Int64[Tensor, "n #h #w"]
) -> Shaped[Tensor, "n c h w"]:
    """Return y with y[n, :, i, j] = images[n, :, row[n, i, j], column[n, i, j]], zero where that is outside.

    `row` and `column` are broadcast against each other to (n, h, w). Neither waits for the device.
    """
    n, channels, height, width = images.shape
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    source = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
    flat = source.view(n, 1, height * width).expand(-1, channels, -1)
    moved = images.reshape(n, channels, height * width).gather(2, flat).view_as(images)
    return moved.masked_fill(~inside.unsqueeze(1), 0)
