"""The Cholesky map: orthonormal rows, singular values below one, and the gradient of the textbook formula."""

import pytest
import torch
from torch.testing import assert_close

from bronet.ortho.orthogonal_maps import cholesky_orthogonal


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def textbook(V: torch.Tensor, ridge: float) -> torch.Tensor:
    V = V / V.detach().abs().max()
    G = V @ V.mT
    e = ridge * G.diagonal(dim1=-2, dim2=-1).mean(-1)
    L = torch.linalg.cholesky(G + e[..., None, None] * torch.eye(V.shape[-2]))
    return torch.linalg.solve_triangular(L, V, upper=False)


@pytest.mark.parametrize("shape", [(4, 9), (5, 5), (2, 3, 6)])
@pytest.mark.parametrize("ridge", [1e-3, 0.1])
def test_map_and_gradient_are_those_of_the_formula(shape: tuple[int, ...], ridge: float) -> None:
    V, G = draw(*shape).requires_grad_(), draw(*shape, seed=1)
    ours, theirs = cholesky_orthogonal(V, ridge=ridge), textbook(V, ridge)
    assert_close(ours, theirs)
    (a,), (b,) = torch.autograd.grad((ours * G).sum(), V), torch.autograd.grad((theirs * G).sum(), V)
    assert_close(a, b, rtol=1e-8, atol=1e-9)


def test_rows_are_orthonormal_without_a_ridge_and_columns_of_a_tall_matrix() -> None:
    W = cholesky_orthogonal(draw(4, 9), ridge=0.0)
    assert_close(W @ W.mT, torch.eye(4).double(), atol=1e-10, rtol=0)
    tall = cholesky_orthogonal(draw(9, 4), ridge=0.0)
    assert_close(tall.mT @ tall, torch.eye(4).double(), atol=1e-10, rtol=0)


def test_singular_values_stay_below_one() -> None:
    assert torch.linalg.svdvals(cholesky_orthogonal(draw(6, 7), ridge=1e-3)).max() < 1
