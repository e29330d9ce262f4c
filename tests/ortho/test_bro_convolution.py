"""The real low-rank form equals the textbook form (Proposition 2, Algorithm 1), and its basis is orthonormal."""

import pytest
import torch
from torch.testing import assert_close

from bronet.ortho.bro_convolution import (
    Geometry,
    Windows,
    apply_factor,
    images_of,
    pixels_of,
    reflect_images,
    reflector_factor,
)
from bronet.ortho.real_dft import DenseDFT, SeparableDFT, Window, frequencies, is_dense, real_dft
from bronet.ortho.reflector import textbook_bro_convolution
from bronet.ortho.spd import unit_scaled
from bronet.ortho.spectrum import autocorrelation, spectrum_blocks, spectrum_gram

RIDGE = 1e-7
CPU = torch.device("cpu")
SIZES = [(4, 4), (5, 7), (6, 4), (1, 3), (9, 2)]
BOTH = pytest.mark.parametrize("dense", [True, False], ids=["dense", "separable"])


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def explicit(dft: DenseDFT | SeparableDFT, pixels: int) -> torch.Tensor:
    return dft.analysis(torch.eye(pixels, dtype=torch.float64)[:, None, :]).flatten(0, 1)


@BOTH
@pytest.mark.parametrize("grid", [*SIZES, (18, 18), (1, 1), (2, 2)])
def test_basis_is_orthonormal_on_the_window_and_synthesis_is_its_adjoint(grid: tuple[int, int], dense: bool) -> None:
    window = Window(grid, (max(1, grid[0] - 2), grid[1]), (1 if grid[0] > 2 else 0, 0))
    dft = real_dft(window, dense=dense, dtype=torch.float64, device=CPU)
    pixels = window.size[0] * window.size[1]
    D = explicit(dft, pixels)
    tolerance = 10 * grid[0] * grid[1] * torch.finfo(torch.float64).eps
    assert_close(D.mT @ D, torch.eye(pixels).double(), atol=tolerance, rtol=0)
    u = draw(D.shape[0] // 2, 2, 3)
    assert_close(dft.synthesis(u)[:, 0], D.mT @ u.flatten(0, 1), atol=tolerance, rtol=0)


@pytest.mark.parametrize("grid", SIZES)
def test_dense_basis_holds_one_frequency_of_each_conjugate_pair(grid: tuple[int, int]) -> None:
    H, W = grid
    alone = (1 if H % 2 else 2) * (1 if W % 2 else 2)
    assert len(frequencies(grid, dense=True)) == (H * W + alone) // 2


@BOTH
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize(("c_in", "c_out"), [(4, 4), (3, 6), (6, 3)])
@pytest.mark.parametrize("keep", [False, True])
def test_real_form_equals_textbook_form(
    size: tuple[int, int], k: int, c_in: int, c_out: int, keep: bool, dense: bool
) -> None:
    x, V = draw(2, c_in, *size).requires_grad_(), draw(max(c_in, c_out), 2, k, k, seed=1).requires_grad_()
    windows = Windows.of(size, k // 2, keep_padding=keep)
    geometry = Geometry(windows, c_out, RIDGE, dense)
    y = reflect_images(x, V, geometry)
    expected = textbook_bro_convolution(x, V, c_out=c_out, keep_padding=keep, ridge=RIDGE)
    blocks = spectrum_blocks(unit_scaled(V.detach()), windows.source.grid, dense=dense)
    condition = float(torch.linalg.cond(blocks).max()) ** 2
    tolerance = 100 * torch.finfo(torch.float64).eps * condition
    assert_close(y, expected, atol=tolerance, rtol=0)
    g = draw(*expected.shape, seed=2)
    for ours, theirs in zip(
        torch.autograd.grad((y * g).sum(), (x, V)), torch.autograd.grad((expected * g).sum(), (x, V)), strict=True
    ):
        assert_close(ours, theirs, atol=tolerance * condition, rtol=0)


@BOTH
def test_kept_factors_give_the_same_function_and_gradient_of_the_input(dense: bool) -> None:
    x, V = draw(2, 3, 5, 4).requires_grad_(), draw(6, 2, 3, 3, seed=1)
    geometry = Geometry(Windows.of((5, 4), 1, keep_padding=True), 6, RIDGE, dense)
    direct = reflect_images(x, V, geometry)
    kept = images_of(apply_factor(pixels_of(x), reflector_factor(V, geometry), geometry), geometry.windows.target)
    assert_close(kept, direct)
    g = draw(*direct.shape, seed=2)
    assert_close(torch.autograd.grad((kept * g).sum(), x), torch.autograd.grad((direct * g).sum(), x))


@BOTH
@pytest.mark.parametrize(("n", "k", "grid"), [(2, 3, (12, 12)), (5, 5, (5, 5))])
def test_gram_matrix_is_the_same_from_both_ways(n: int, k: int, grid: tuple[int, int], dense: bool) -> None:
    V = draw(6, n, k, k)
    A = spectrum_blocks(V, grid, dense=dense)
    assert_close(spectrum_gram(V, grid, dense=dense), A.mT @ A)
    by_autocorrelation = spectrum_blocks(autocorrelation(V), grid, dense=dense, corner=(1 - k, 1 - k))
    assert_close(by_autocorrelation, A.mT @ A)


def test_one_call_form_chooses_by_grid_size() -> None:
    assert is_dense((4, 4), CPU)
    assert not is_dense((34, 34), CPU)
    x, V = draw(1, 4, 14, 14), draw(4, 2, 3, 3)
    y = reflect_images(x, V, Geometry(Windows.of((14, 14), 1), 4, RIDGE, dense=False))
    assert_close(y, textbook_bro_convolution(x, V, c_out=4, ridge=RIDGE), atol=1e-10, rtol=0)


def test_gradient_is_right_by_finite_differences() -> None:
    V = draw(4, 2, 3, 3).requires_grad_()
    x = draw(1, 4, 3, 4, seed=3).requires_grad_()

    def convolution(x: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
        return reflect_images(x, V, Geometry(Windows.of((3, 4), 1), 4, 1e-3, dense=True))

    assert torch.autograd.gradcheck(convolution, (x, V))
