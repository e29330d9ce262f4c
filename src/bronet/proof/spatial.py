"""Convolutions as matrix products of patches, whose rounding the standard model covers, with zero or circular edges.

A library's convolution may use transforms that do not obey that model, so a proof does not go through one.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from bronet.proof.convolution import circular_norm, convolution_norm


def patch_convolution(
    x: Float[Tensor, "b c_in h w"], kernel: Float[Tensor, "c_out c_in k k"], *, circular: bool
) -> Float[Tensor, "b c_out h w"]:
    """Return the convolution that keeps the image's size, for odd k, as one product of the kernel with patches."""
    h, w = x.shape[-2:]
    k = kernel.shape[-1]
    patches = F.unfold(pad_edges(x, k // 2, circular=circular), k)
    return (kernel.flatten(1) @ patches).unflatten(-1, (h, w))


def pad_edges(x: Float[Tensor, "b c h w"], width: int, *, circular: bool) -> Float[Tensor, "b c h_out w_out"]:
    """Return the image with `width` more pixels on each side: zeros, or its own opposite edge.

    Unlike `F.pad` it wraps as often as needed, so that a kernel may be larger than the image.
    """
    if not circular:
        return F.pad(x, (width, width, width, width))
    for dim in (-2, -1):
        size = x.shape[dim]
        x = x.index_select(dim, _wrapped(x, size, width))
    return x


def _wrapped(x: Tensor, size: int, width: int) -> Tensor:
    return torch.arange(-width, size + width, device=x.device) % size


def kept_size_norm(kernel: Float[Tensor, "c_out c_in k k"], size: tuple[int, int], *, circular: bool) -> float:
    """Return a proved upper bound on the norm of `patch_convolution` on images of this size."""
    if circular:
        return circular_norm(kernel, size)
    return convolution_norm(kernel, size, stride=1, padding=kernel.shape[-1] // 2)
