"""Proved upper bounds on the norm of a convolution with its kernel as stored, and the convolution that proofs compute.

Small inputs: the norm itself, from the Gram matrix J'J of the explicit Jacobian, which is a sum of copies of the
kernel's own Gram matrix, one for each output pixel. Large inputs: the convolution is a compression of a circular one
on a grid of at least s + k - 1 pixels, a stride becoming extra input channels (polyphase), so the largest singular
value over that grid's frequencies bounds it; this is loose by up to two percent for a CIFAR stem, more on tiny images.
A kernel that AOL or SLL rescaled has a bound for images of every size, from weighted absolute sums.

A library's convolution may use transforms that the standard model of rounding does not cover, so a proof multiplies the
kernel with patches instead (`patch_convolution`).
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from bronet.ortho.spectrum import spectrum_blocks
from bronet.proof.proved_map import TRIGONOMETRIC_ULPS, gamma_of_proof, up
from bronet.proof.spectral import gram_error, largest_eigenvalue, power_of_two_scale

# Channels whose patches are held at a time: memory, not accuracy.
_CHANNELS_AT_ONCE = 32

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
    inputs = c_in * size[0] * size[1]
    # For every output pixel the index of each (channel, tap), one past the last outside the image. They are below 2^53,
    # so unfolding them as float64 is exact.
    numbers = torch.arange(1, inputs + 1, dtype=torch.float64).view(1, c_in, *size)
    patches = F.unfold(numbers, (kh, kw), padding=padding, stride=stride)[0].mT.long()
    index = torch.where(patches == 0, inputs, patches - 1)
    JJ = torch.zeros(inputs + 1, inputs + 1, dtype=torch.float64, device=kernel.device)
    for patch in index:  # every output pixel sees one patch; pixels outside the image share the last row
        JJ[patch[:, None], patch[None, :]] += gram
    overlaps = math.ceil(kh / stride) * math.ceil(kw / stride)
    error = gamma_of_proof(c_out + overlaps) * absolute_convolution_norm(kernel) ** 2
    return up(up(math.sqrt(largest_eigenvalue(JJ[:-1, :-1], up(error)))) * scale)


def circulant_norm(
    kernel: Float[Tensor, "c_out c_in kh kw"], size: tuple[int, int], *, stride: int, padding: int
) -> float:
    """Return the largest singular value over the frequencies of a circular convolution that contains this one.

    It acts with stride one on the image split into stride x stride phases.
    """
    kh, kw = kernel.shape[2:]
    kernel = F.pixel_unshuffle(F.pad(kernel.double(), (0, -kw % stride, 0, -kh % stride)), stride)
    h, w = (math.ceil((s + 2 * padding) / stride) + k - 1 for s, k in zip(size, kernel.shape[2:], strict=True))
    return circular_norm(kernel, (h, w))


def circular_norm(kernel: Float[Tensor, "c_out c_in kh kw"], grid: tuple[int, int]) -> float:
    """Return an upper bound on the norm of the circular convolution of this grid, up to rounding the norm itself."""
    kernel, taps = kernel.double(), kernel[0, 0].numel()
    scale = power_of_two_scale(kernel)
    kernel = kernel / scale
    blocks = spectrum_blocks(kernel, grid, dense=True)  # f 2c_out 2c_in
    if blocks.shape[-2] < blocks.shape[-1]:
        blocks = blocks.mT
    # The stored spectrum differs from the exact one by the cosines' error and the sums' rounding, both relative to the
    # sums of |taps|; real and imaginary part make the root of two, and the factor two rounds those sums up.
    error = gamma_of_proof(taps + TRIGONOMETRIC_ULPS)
    spread = 2 * error * math.sqrt(2.0) * float(kernel.abs().sum((2, 3)).square().sum().sqrt())
    squared = largest_eigenvalue(blocks.mT @ blocks, gram_error(blocks))
    return up((up(math.sqrt(squared)) + up(spread)) * scale)


def absolute_convolution_norm(kernel: Float[Tensor, "c_out c_in kh kw"]) -> float:
    """Return an upper bound on the norm of the convolution with |kernel|, on images of any size."""
    magnitude = kernel.double().abs()
    into_output, from_input = float(magnitude.sum((1, 2, 3)).max()), float(magnitude.sum((0, 2, 3)).max())
    return up(math.sqrt(into_output) * math.sqrt(from_input) * (1 + gamma_of_proof(magnitude.numel())))


def kept_size_norm(kernel: Float[Tensor, "c_out c_in k k"], size: tuple[int, int], *, circular: bool) -> float:
    """Return a proved upper bound on the norm of `patch_convolution` on images of this size."""
    if circular:
        return circular_norm(kernel, size)
    return convolution_norm(kernel, size, stride=1, padding=kernel.shape[-1] // 2)


def weighted_sum_norm(kernel: Float[Tensor, "c_out c_in k k"], weights: Float[Tensor, " c_in"]) -> float:
    """Return an upper bound on the norm of the convolution with a float64 kernel, zero-padded or circular, any size.

    For a symmetric G and positive weights w, lambda_max(G) <= max over i of (sum over j of |G_ij| w_j) / w_i, here with
    the kernel's Gram operator as G. The weights decide how tight the bound is, never whether it holds; with those that
    AOL and SLL imply it is one, up to the rounding that is counted here.
    """
    c_out, c_in, k, _ = kernel.shape
    columns = kernel.transpose(0, 1)
    flat = columns.flatten(1)
    # The sums over taps of |autocorrelation|, through matrix products, whose rounding is known: some of i, j at a time.
    parts = [(flat @ F.unfold(some, k, padding=k - 1)).abs().sum(-1) for some in columns.split(_CHANNELS_AT_ONCE)]
    sums = (torch.cat(parts) @ weights) / weights
    magnitude = kernel.abs()
    # Rounding of the autocorrelation: gamma of the sums' length times the autocorrelation of |K|, summed alike.
    per_output = magnitude.sum((2, 3))
    absolute = (per_output.mT @ (per_output @ weights)) / weights
    length = c_out * k * k
    exact = sums + gamma_of_proof(length) * absolute
    further = gamma_of_proof(c_in * (2 * k - 1) ** 2 + length + 4)  # the sums over taps and channels, and the division
    return up(math.sqrt(float((exact * (1 + further)).max())))


def patch_convolution(
    x: Float[Tensor, "b c_in h w"], kernel: Float[Tensor, "c_out c_in k k"], *, circular: bool
) -> Float[Tensor, "b c_out h w"]:
    """Return the convolution that keeps the image's size, for odd k, as one product of the kernel with patches."""
    patches = F.unfold(pad_edges(x, kernel.shape[-1] // 2, circular=circular), kernel.shape[-1])
    return (kernel.flatten(1) @ patches).unflatten(-1, x.shape[-2:])


def pad_edges(x: Float[Tensor, "b c h w"], width: int, *, circular: bool) -> Float[Tensor, "b c h_out w_out"]:
    """Return the image with `width` more pixels on each side: zeros, or its own opposite edge.

    Unlike `F.pad` it wraps as often as needed, so that a kernel may be larger than the image.
    """
    if not circular:
        return F.pad(x, (width, width, width, width))
    for dim in (-2, -1):
        size = x.shape[dim]
        x = x.index_select(dim, torch.arange(-width, size + width, device=x.device) % size)
    return x
