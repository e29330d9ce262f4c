"""Proved upper bounds on the norm of a zero-padded, strided convolution, with its kernel as stored.

Small inputs: the norm itself, from the Gram matrix J'J of the explicit Jacobian, which is a sum of copies of the
kernel's own Gram matrix, one for each output pixel. Large inputs: the convolution is a compression of a circular one
on a grid of at least s + k - 1 pixels, a stride becoming extra input channels (polyphase), so the largest singular
value over that grid's frequencies bounds it; this is loose by up to two percent for a CIFAR stem, more on tiny images.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from bronet.ortho.spectrum import spectrum_blocks
from bronet.proof.rounding import TRIGONOMETRIC_ULPS, gamma, up
from bronet.proof.spectral import gram_error, largest_eigenvalue, power_of_two_scale

# Inputs up to which the explicit Jacobian is used: its Gram matrix has the square of this many entries.
EXPLICIT_INPUTS = 4096


def convolution_norm(
    kernel: Float[Tensor, "c_out c_in kh kw"], size: tuple[int, int], *, stride: int, padding: int
) -> float:
    """Return an upper bound on the spectral norm of the convolution on images of this size."""
    if kernel.shape[1] * size[0] * size[1] <= EXPLICIT_INPUTS:
        return explicit_norm(kernel, size, stride=stride, padding=padding)
    return circulant_norm(kernel, size, stride=stride, padding=padding)


def explicit_norm(
    kernel: Float[Tensor, "c_out c_in kh kw"], size: tuple[int, int], *, stride: int, padding: int
) -> float:
    """Return the norm itself, up to rounding: the square root of a proved lambda_max(J'J)."""
    kernel = kernel.double()
    scale = power_of_two_scale(kernel)
    kernel = kernel / scale
    c_out, c_in, kh, kw = kernel.shape
    flat = kernel.reshape(c_out, -1)
    gram = flat.mT @ flat
    index = _patch_index(c_in, size, (kh, kw), stride=stride, padding=padding)
    inputs = c_in * size[0] * size[1]
    JJ = torch.zeros(inputs + 1, inputs + 1, dtype=torch.float64, device=kernel.device)
    for patch in index:  # every output pixel sees one patch; pixels outside the image share the last row
        JJ[patch[:, None], patch[None, :]] += gram
    overlaps = math.ceil(kh / stride) * math.ceil(kw / stride)
    error = gamma(c_out + overlaps) * absolute_convolution_norm(kernel) ** 2
    return up(up(math.sqrt(largest_eigenvalue(JJ[:-1, :-1], up(error)))) * scale)


def circulant_norm(
    kernel: Float[Tensor, "c_out c_in kh kw"], size: tuple[int, int], *, stride: int, padding: int
) -> float:
    """Return the largest singular value over the frequencies of a circular convolution that contains this one."""
    kernel = _polyphase(kernel.double(), stride)
    taps = (kernel.shape[2], kernel.shape[3])
    grid = (
        math.ceil((size[0] + 2 * padding) / stride) + taps[0] - 1,
        math.ceil((size[1] + 2 * padding) / stride) + taps[1] - 1,
    )
    return circular_norm(kernel, grid)


def circular_norm(kernel: Float[Tensor, "c_out c_in kh kw"], grid: tuple[int, int]) -> float:
    """Return an upper bound on the norm of the circular convolution of this grid, up to rounding the norm itself."""
    kernel = kernel.double()
    scale = power_of_two_scale(kernel)
    kernel = kernel / scale
    taps = (kernel.shape[2], kernel.shape[3])
    blocks = spectrum_blocks(kernel, grid, dense=True)  # f 2c_out 2c_in
    if blocks.shape[-2] < blocks.shape[-1]:
        blocks = blocks.mT
    # The stored spectrum differs from the exact one by the cosines' error and the sums' rounding, both relative to the
    # sums of |taps|; real and imaginary part make the root of two, and the factor two rounds those sums up.
    error = gamma(taps[0] * taps[1] + TRIGONOMETRIC_ULPS)
    spread = 2 * error * math.sqrt(2.0) * float(kernel.abs().sum((2, 3)).square().sum().sqrt())
    squared = largest_eigenvalue(blocks.mT @ blocks, gram_error(blocks))
    return up((up(math.sqrt(squared)) + up(spread)) * scale)


def absolute_convolution_norm(kernel: Float[Tensor, "c_out c_in kh kw"]) -> float:
    """Return an upper bound on the norm of the convolution with |kernel|, on images of any size."""
    magnitude = kernel.double().abs()
    into_output, from_input = float(magnitude.sum((1, 2, 3)).max()), float(magnitude.sum((0, 2, 3)).max())
    return up(math.sqrt(into_output) * math.sqrt(from_input) * (1 + gamma(magnitude.numel())))


def _polyphase(kernel: Float[Tensor, "c_out c_in kh kw"], stride: int) -> Float[Tensor, "c_out c_phases th tw"]:
    """Return the stride-1 kernel that acts on the image split into stride x stride phases."""
    kh, kw = kernel.shape[2:]
    padded = F.pad(kernel, (0, -kw % stride, 0, -kh % stride))
    return F.pixel_unshuffle(padded, stride)


def _patch_index(c_in: int, size: tuple[int, int], taps: tuple[int, int], *, stride: int, padding: int) -> Tensor:
    """Return, for every output pixel, the flat input index of each (channel, tap); one past the last outside it."""
    h, w = size
    inputs = c_in * h * w
    # The indices are below 2^53, so unfolding them as float64 is exact.
    numbers = torch.arange(1, inputs + 1, dtype=torch.float64).view(1, c_in, h, w)
    patches = F.unfold(numbers, taps, padding=padding, stride=stride)[0].mT.long()
    return torch.where(patches == 0, inputs, patches - 1)
