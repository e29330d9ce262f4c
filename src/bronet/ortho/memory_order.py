"""Images in another memory order: (b, h, w, c), in which a CPU convolves, or (h, w, c, b), in which layers multiply.

On a CPU torch moves the entries of a transposed matrix ten times as fast as those of other permutations, so both are
made of such transposes.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def pixels_first(x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
    """Return images that lie in memory as (b, h, w, c); the shape stays."""
    pixels, by_batch = x.permute(0, 2, 3, 1), x.permute(2, 3, 1, 0)
    if pixels.is_contiguous() or not _moves_matrices(x):
        return x.contiguous(memory_format=torch.channels_last)
    if by_batch.is_contiguous():
        return by_batch.reshape(-1, len(x)).mT.contiguous().view(pixels.shape).permute(0, 3, 1, 2)
    if x.requires_grad and torch.is_grad_enabled():
        return x.contiguous(memory_format=torch.channels_last)
    moved = x.new_empty(pixels.shape)
    for image, into in zip(x.flatten(2), moved.flatten(1, 2), strict=True):
        into.copy_(image.mT)
    return moved.permute(0, 3, 1, 2)


def batch_last(x: Float[Tensor, "b c h w"]) -> Float[Tensor, "h w c b"]:
    """Return images permuted and contiguous as (h, w, c, b): a view if they already lie so in memory."""
    by_batch = x.permute(2, 3, 1, 0)
    if by_batch.is_contiguous() or not _moves_matrices(x):
        return by_batch.contiguous()
    return pixels_first(x).permute(0, 2, 3, 1).reshape(len(x), -1).mT.contiguous().view(by_batch.shape)


def _moves_matrices(x: Tensor) -> bool:
    return x.device.type == "cpu" and not torch.compiler.is_compiling()
