"""What a CPU solves with instead of inverses: the same solutions, and the same shift of singular matrices."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from bronet.ortho.spd import factor_for_solving, factored, solved, with_ridge

RIDGE = 1e-6


def drawn(*shape: int, is_complex: bool, seed: int = 0) -> Tensor:
    dtype = torch.complex128 if is_complex else torch.float64
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("n", [1, 5, 100])
def test_the_factor_solves_for_vectors_that_are_rows(n: int, is_complex: bool) -> None:
    V, z = drawn(2, 2 * n, n, is_complex=is_complex), drawn(2, n, 3, is_complex=is_complex, seed=1)
    S = with_ridge(V.mH @ V, RIDGE)  # given with its rows or its columns side by side in memory
    for gram in (S.clone, lambda: S.mT.clone(memory_format=torch.contiguous_format).mT):
        L = factor_for_solving(gram)
        assert_close(L @ L.mH, S)
        assert_close(solved(L, z.mT.contiguous()).mT, torch.cholesky_solve(z, torch.linalg.cholesky(S)))


@pytest.mark.parametrize("is_complex", [False, True])
def test_a_singular_matrix_is_shifted_as_for_its_inverse_and_its_neighbours_are_not(is_complex: bool) -> None:
    V = drawn(2, 200, 100, is_complex=is_complex)
    V[1, :, 50:] = V[1, :, :50]
    S, z = V.mH @ V, drawn(2, 100, 3, is_complex=is_complex, seed=1)
    ours = solved(factor_for_solving(S.clone), z.mT).mT
    _, inverse = factored(S)
    assert_close(ours[0], (inverse @ z)[0])
    largest = ours[1].norm() / (inverse @ z)[1].norm()
    assert 0.5 < float(largest) < 2


def test_matrices_that_are_not_numbers_have_no_factor() -> None:
    assert factor_for_solving(lambda: torch.full((2, 3, 3), torch.nan)).isnan().any()
