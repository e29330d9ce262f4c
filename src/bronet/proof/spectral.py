"""Proved upper bounds on largest eigenvalues and singular values: of real float64 matrices, and of convolutions.

A bound t is proved by any matrix L for which t I - M - L L' is small: L L' is positive semidefinite, so lambda_max(M)
is at most t plus the norm of that residual. L comes from a Cholesky factorisation, but nothing is assumed of the
routine that computed it: the residual is measured, and only the rounding of one matrix product enters the proof. An
eigenvalue routine alone would only be an estimate.

The norm of a convolution is that of its kernel as stored. Small inputs: the norm itself, from the Gram matrix J'J of
the explicit Jacobian, which is a sum of copies of the kernel's own Gram matrix, one for each output pixel. Large
inputs: the convolution is a compression of a circular one on a grid of at least s + k - 1 pixels, a stride becoming
extra input channels (polyphase), so the largest singular value over that grid's frequencies bounds it; this is loose by
up to two percent for a CIFAR stem, more on tiny images. A kernel that AOL or SLL rescaled has a bound for images of
every size, from weighted absolute sums.

A library's convolution may use transforms that the standard model of rounding does not cover, so a proof multiplies the
kernel with patches instead (`patch_convolution`).
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from bronet.errors import BronetError
from bronet.ortho.spectrum import spectrum_blocks
from bronet.proof.proved_map import TRIGONOMETRIC_ULPS, UNIT_ROUNDOFF, Product, gamma_of_proof, up

# Up to this size all eigenvalues are computed to start from; beyond, Lanczos steps are cheaper. They go on while they
# still find more from one look to the next, for at most this share of n: about as many operations as the
# factorisation that follows.
_DIRECT_SIZE = 64
_LANCZOS_LOOK = 32
_LANCZOS_SHARE = 1 / 4
_LANCZOS_END = 2.0**-36
_KRYLOV_END = 1e-12
_FIRST_SLACK = 2.0**-34
_SLACK_GROWTH = 8.0

# Channels whose patches are held at a time: memory, not accuracy.
_CHANNELS_AT_ONCE = 32

# Inputs up to which the explicit Jacobian is used: its Gram matrix has the square of this many entries.
EXPLICIT_INPUTS = 4096


def largest_eigenvalue(M: Float[Tensor, "*batch n n"], formation_error: float = 0.0) -> float:
    """Return an upper bound on the largest eigenvalue of all the symmetric matrices M, their lower triangles read.

    `formation_error` bounds the spectral norm of (M as stored) - (M as meant). The estimate that starts the search
    decides only how tight the result is, never whether it holds. A Gram matrix of tiny entries underflows: callers
    bring their factor to scale first (`power_of_two_scale`).
    """
    M = M.reshape(-1, *M.shape[-2:]).double()
    if not bool(torch.isfinite(M).all()):
        raise BronetError(
            "a Gram matrix must be finite to bound its norm; the weights hold NaN, infinity or huge numbers"
        )
    symmetric = M.tril() + M.tril(-1).mT
    # The largest row sum (Gershgorin) is always valid, and tight where M is nearly a multiple of I.
    certain = float(symmetric.abs().sum(-1).max()) * (1 + gamma_of_proof(M.shape[-1] + 1))
    if certain == 0:
        return formation_error
    # A largest row sum is at most sqrt(n) times the norm; the floor also ends the search where M has no positive part.
    estimate = certain * max(_estimate(symmetric / certain), 1 / M.shape[-1])
    if certain <= estimate * (1 + _FIRST_SLACK):
        return up(certain + formation_error)
    slack = _FIRST_SLACK
    while (bound := estimate * (1 + slack)) < certain:
        proved = _cholesky_bound(symmetric, bound)
        if proved is not None:
            return up(min(proved, certain) + formation_error)
        slack *= _SLACK_GROWTH
    return up(certain + formation_error)


def largest_singular_value(A: Float[Tensor, "*batch m n"]) -> float:
    """Return an upper bound on the spectral norm of all the matrices A, through the smaller Gram matrix."""
    A = A.double()
    scale = power_of_two_scale(A)
    A = A / scale
    if A.shape[-2] < A.shape[-1]:
        A = A.mT
    squared = largest_eigenvalue(A.mT @ A, gram_error(A))
    return up(up(math.sqrt(squared)) * scale)


def product_with(A: Float[Tensor, "m n"]) -> Product:
    """Return what is proved of the product with a matrix."""
    return Product(largest_singular_value(A), absolute_norm(A), A.shape[1])


def power_of_two_scale(A: Tensor) -> float:
    """Return the power of two s for which the largest entry of A / s lies in [1, 2), and 1 for A = 0.

    Dividing by it is exact up to underflow, and keeps Gram matrices of any finite A from vanishing or overflowing.
    """
    largest = float(A.detach().abs().max())
    if not math.isfinite(largest):
        raise BronetError("weights must be finite to bound their norm, got NaN or infinity")
    return math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest > 0 else 1.0


def gram_error(A: Float[Tensor, "*batch m n"]) -> float:
    """Return an upper bound on the norm of fl(A'A) - A'A: gamma_m times the largest squared Frobenius norm."""
    squares = A.double().square().sum((-2, -1)).max()
    return up(gamma_of_proof(A.shape[-2]) * float(squares) * (1 + gamma_of_proof(A.shape[-1] * A.shape[-2])))


def absolute_norm(A: Float[Tensor, "*batch m n"]) -> float:
    """Return an upper bound on the spectral norm of |A| (entries made positive), from row and column sums."""
    A = A.double().abs()
    rows, columns = float(A.sum(-1).max()), float(A.sum(-2).max())
    return up(math.sqrt(rows) * math.sqrt(columns) * (1 + gamma_of_proof(A.shape[-1] + A.shape[-2])))


def _estimate(M: Float[Tensor, "batch n n"]) -> float:
    """Return an estimate of the largest eigenvalue over a batch of norm at most one.

    Training lowers the largest singular values only, until many are nearly equal; Lanczos then takes many steps.
    """
    batch, n, _ = M.shape
    if n <= _DIRECT_SIZE:
        return float(torch.linalg.eigvalsh(M).max())
    limit = max(2 * _LANCZOS_LOOK, round(_LANCZOS_SHARE * n))
    v = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(M.device)
    v = (v / v.norm()).expand(batch, n)
    basis = torch.zeros(batch, limit, n, dtype=torch.float64, device=M.device)
    projected = torch.zeros(batch, limit + 1, limit + 1, dtype=torch.float64, device=M.device)
    found = -math.inf
    for step in range(limit):
        basis[:, step] = v
        known = basis[:, : step + 1]
        w = (M @ v[:, :, None])[:, :, 0]
        projected[:, step, step] = (v * w).sum(dim=-1)
        for _ in range(2):  # twice is enough
            w = w - (known.mT @ (known @ w[:, :, None]))[:, :, 0]
        size = w.norm(dim=-1, keepdim=True)
        size = torch.where(size > _KRYLOV_END, size, 0.0)  # zero once the Krylov space is exhausted
        projected[:, step + 1, step] = size[:, 0]  # eigvalsh reads the lower triangle
        v = torch.where(size > 0, w / size, 0.0)
        if (step + 1) % _LANCZOS_LOOK == 0 or step + 1 == limit:
            before, found = found, float(torch.linalg.eigvalsh(projected[:, : step + 1, : step + 1]).max())
            if found - before <= _LANCZOS_END * abs(found):
                break
    return found


def _cholesky_bound(M: Float[Tensor, "batch n n"], bound: float) -> float | None:
    """Return an upper bound on lambda_max near `bound` if the factorisation of bound I - M succeeds, else None."""
    n = M.shape[-1]
    shifted = -M
    shifted.diagonal(dim1=-2, dim2=-1).add_(bound)
    L, info = torch.linalg.cholesky_ex(shifted)
    if bool(info.any()) or not bool(torch.isfinite(L).all()):
        return None
    residual = float(torch.linalg.matrix_norm(shifted - L @ L.mT).max())  # Frobenius
    product = gamma_of_proof(n + 1) * float(L.square().sum((-2, -1)).max())  # what the rounding of L L' can hide
    subtraction = UNIT_ROUNDOFF * (bound + float(M.diagonal(dim1=-2, dim2=-1).abs().max()))
    return up(bound + (residual + product) * (1 + gamma_of_proof(n * n + 4)) + subtraction)


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
