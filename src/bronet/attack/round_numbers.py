"""A network that is only asked about round numbers of images.

Activations lie as (pixel, channel, image), so the number of images is the length of a row in memory. Rows of odd length
are not aligned, and a GPU multiplies such matrices at a fraction of its speed; a search is left with any number.
"""

from collections.abc import Callable

import torch
from torch import Tensor

ROUND = 8  # 16 bytes of half precision, what the widest loads want


def in_round_numbers(model: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the model from pixels to logits, with blank images added up to a multiple of `ROUND`, and taken off again.

    Images must not influence each other's logits, as in evaluation mode.
    """

    def asked(pixels: Tensor) -> Tensor:
        blank = pixels.new_zeros(-len(pixels) % ROUND, *pixels.shape[1:])
        return model(torch.cat((pixels, blank)))[: len(pixels)]

    return asked
