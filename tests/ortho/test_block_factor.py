"""Stacked matrices multiply as complex ones do, and a factor in blocks solves what `spd` inverts."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from bronet.ortho.block_factor import BlockFactor, Stacked
from bronet.ortho.spd import factored, with_ridge

RIDGE = 1e-6


def drawn(*shape: int, is_complex: bool, seed: int = 0) -> Tensor:
    dtype = torch.complex128 if is_complex else torch.float64
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def stacked(V: Tensor) -> Stacked:
    return Stacked(torch.cat((V.real, V.imag), dim=1) if V.is_complex() else V, V.is_complex())


def as_rows(columns: Tensor) -> Tensor:
    """Return columns as rows, real parts above imaginary ones."""
    return stacked(columns.mT).parts


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("n", [5, 64, 100, 301])
def test_a_factor_in_blocks_solves_the_gram_matrix(n: int, is_complex: bool) -> None:
    V, z = drawn(2, 2 * n, n, is_complex=is_complex), drawn(2, n, 3, is_complex=is_complex, seed=1)
    S = with_ridge(V.mH @ V, RIDGE)
    assert_close(stacked(V).gram().parts, stacked(V.mH @ V).parts)
    factor = BlockFactor.of_gram(stacked(V), RIDGE)
    assert_close(factor.solve(as_rows(z)), as_rows(torch.cholesky_solve(z, torch.linalg.cholesky(S))))


@pytest.mark.parametrize("is_complex", [False, True])
def test_stacked_matrices_multiply_as_complex_ones(is_complex: bool) -> None:
    V = drawn(2, 7, 4, is_complex=is_complex)
    u, p = drawn(2, 7, 3, is_complex=is_complex, seed=2), drawn(2, 4, 3, is_complex=is_complex, seed=3)
    assert_close(stacked(V).conjugate_after(as_rows(u)), as_rows(V.mH @ u))
    assert_close(stacked(V).conjugate_after(as_rows(u[:, :5])), as_rows(V[:, :5].mH @ u[:, :5]))
    assert_close(stacked(V).transpose_after(as_rows(p)), as_rows(V @ p))
    assert_close(stacked(V).outer().parts, stacked(V @ V.mH).parts)


@pytest.mark.parametrize("is_complex", [False, True])
def test_a_singular_matrix_is_shifted_as_spd_shifts_it_and_its_neighbours_are_not(is_complex: bool) -> None:
    V = drawn(2, 200, 100, is_complex=is_complex)
    V[1, :, 50:] = V[1, :, :50]
    z = drawn(2, 100, 3, is_complex=is_complex, seed=1)
    ours = BlockFactor.of_gram(stacked(V), 0.0).solve(as_rows(z))
    _, inverse = factored(with_ridge(V.mH @ V, 0.0))
    assert_close(ours[0], as_rows(inverse @ z)[0])
    largest = ours[1].norm() / as_rows(inverse @ z)[1].norm()
    assert 0.5 < float(largest) < 2
