"""Lemmas 1 and 2: what a circular convolution is in the Fourier basis."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bronet.ortho.spectrum import centred_spectrum
from jacobian import jacobian

GRIDS = [(4, 4), (5, 6)]


def circular(x: Tensor, kernel: Tensor) -> Tensor:
    """Return the correlation with a kernel of odd taps on an image that wraps around."""
    margin = kernel.shape[-1] // 2
    return F.conv2d(F.pad(x, (margin,) * 4, mode="circular"), kernel)


@pytest.mark.parametrize("grid", GRIDS)
def test_a_circular_convolution_is_a_product_at_every_frequency(grid: tuple[int, int]) -> None:
    kernel, x = torch.randn(3, 2, 3, 3, dtype=torch.float64), torch.randn(1, 2, *grid, dtype=torch.float64)
    spectrum = torch.fft.fft2(F.pad(kernel, (0, grid[1] - 3, 0, grid[0] - 3)).roll((-1, -1), (-2, -1)))
    product = torch.einsum("oihw,bihw->bohw", spectrum.conj(), torch.fft.fft2(x))
    assert torch.allclose(torch.fft.fft2(circular(x, kernel)), product, atol=1e-12)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("grid", GRIDS)
def test_the_blocks_of_the_spectrum_have_the_singular_values_of_the_convolution(
    grid: tuple[int, int], dense: bool
) -> None:
    kernel = torch.randn(3, 2, 3, 3, dtype=torch.float64)
    explicit = torch.linalg.svdvals(jacobian(lambda x: circular(x, kernel), (2, *grid)))
    blocks = torch.linalg.svdvals(centred_spectrum(kernel, grid, dense=dense)).flatten()
    nearest = (blocks[:, None] - explicit[None]).abs()
    assert float(nearest.min(dim=1).values.max()) < 1e-12  # half of the frequencies: each stands for its conjugate, too
    assert float(nearest.min(dim=0).values.max()) < 1e-12
