"""Random crop, flip and RandAugment of a batch of stored images (App. B.3), on the device that holds them.

Every image draws its own crop, flip and operations from a generator on the images' device. There is no loop over
images, and nothing waits for the device. CPU and CUDA generators draw different bits.
"""

import torch
from jaxtyping import Shaped, UInt8
from torch import Tensor

from bronet.data.operations import gather_pixels
from bronet.data.rand_augment import rand_augment
from bronet.data.randomness import Share
from bronet.errors import BronetError
from bronet.recipe.dataset import BYTE_SCALE
from bronet.recipe.schema import Border, DataRecipe


def augment(
    images: UInt8[Tensor, "n c h w"], generator: torch.Generator, data: DataRecipe, *, share: Share | None = None
) -> UInt8[Tensor, "n c h w"]:
    """Return the data set's images cropped, then flipped, then RandAugmented, as bytes of the same scale.

    RandAugment's operations assume the full range of a byte, so images of another scale (the digits: 16) refuse it.
    With a `share`, the images are that part of a larger batch, and the result is the same as within it.
    """
    share = share or Share.whole(len(images))
    if data.crop_padding:
        images = random_crop(images, data.crop_padding, generator, border=data.border, share=share)
    if data.flip:
        images = random_flip(images, generator, share=share)
    if data.randaugment_probability:
        if data.spec().scale != BYTE_SCALE:
            raise BronetError(
                f"RandAugment needs pixels of scale {BYTE_SCALE}, got scale {data.spec().scale}; "
                "set the probability of RandAugment to 0 for this data set"
            )
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
    share: Share | None = None,
) -> Shaped[Tensor, "n c h w"]:
    """Return a uniformly placed window, of the image's size, of each image padded on all sides."""
    if padding < 0:
        raise BronetError(f"crop padding must be at least 0, got {padding}")
    n, _, height, width = images.shape
    device, share = images.device, share or Share.whole(n)
    drawn = torch.randint(-padding, padding + 1, (2, share.total, 1, 1), generator=generator, device=device)
    shift = share.take(drawn, dim=1)
    row = torch.arange(height, device=device).view(1, height, 1) + shift[0]
    column = torch.arange(width, device=device).view(1, 1, width) + shift[1]
    return gather_pixels(images, row, column, border=border)


def random_flip(
    images: Shaped[Tensor, "n c h w"], generator: torch.Generator, *, share: Share | None = None
) -> Shaped[Tensor, "n c h w"]:
    """Return each image mirrored left to right with probability 1/2."""
    share = share or Share.whole(len(images))
    mirrored = torch.randint(0, 2, (share.total, 1, 1, 1), generator=generator, device=images.device)
    return torch.where(share.take(mirrored).bool(), images.flip(-1), images)
