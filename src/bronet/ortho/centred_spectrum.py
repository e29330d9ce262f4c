"""The spectrum of a kernel as complex matrices, one for each frequency up to conjugation, and back to real blocks.

Cayley, LOT and Cholesky see the phase of a kernel, so its middle tap lies at the origin here (the block reflector's own
`spectrum_blocks` need not care). Maps between spectra are complex, which halves their arithmetic against real
blocks; what is applied to images is real again.
"""

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from bronet.ortho.real_dft import kernel_basis


def centred_spectrum(
    kernel: Float[Tensor, "m n kh kw"], grid: tuple[int, int], *, dense: bool
) -> Complex[Tensor, "f m n"]:
    """Return the kernel's matrix at every frequency of the grid, the middle tap at the origin."""
    m, n, kh, kw = kernel.shape
    middle = (-(kh // 2), -(kw // 2))
    basis = kernel_basis(grid, (kh, kw), dense=dense, dtype=kernel.dtype, device=kernel.device, corner=middle)
    taps = kernel.permute(2, 3, 0, 1).reshape(kh * kw, m * n)
    re, im = (basis @ taps).view(2, -1, m, n).unbind(0)
    return torch.complex(re, im)


def real_blocks(W: Complex[Tensor, "f m n"]) -> Float[Tensor, "f two_m two_n"]:
    """Return [[Re W, -Im W], [Im W, Re W]]: the same map on (re, im) pairs, with the same singular values, twice."""
    re, im = W.real, W.imag
    return torch.cat((torch.cat((re, -im), dim=-1), torch.cat((im, re), dim=-1)), dim=-2)
