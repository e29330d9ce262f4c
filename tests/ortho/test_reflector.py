"""Proposition 1 and Lemma 3: the block reflector, as theorems."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from bronet.ortho.reflector import block_reflector, dense_inverse, embed_channels, reflect
from bronet.ortho.spd import symmetric_inverse, unit_scaled

RIDGE = 1e-7
# Rounding moves an eigenvalue by the condition of V'V, which is large for some Gaussian V.
LOOSE = 1e-3


def gaussian(m: int, n: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(m, n, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 12), st.data())
def test_reflector_is_symmetric_orthogonal_with_n_eigenvalues_minus_one(m: int, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, m - 1))
    W = block_reflector(gaussian(m, n, seed=m * 100 + n), ridge=0.0)
    assert_close(W, W.mT, atol=1e-9, rtol=0)
    eigenvalues = torch.linalg.eigvalsh((W + W.mT) / 2)
    expected = torch.cat((-torch.ones(n), torch.ones(m - n))).double()
    assert_close(eigenvalues, expected, atol=LOOSE, rtol=0)


def test_well_conditioned_reflector_is_orthogonal_to_rounding() -> None:
    V, _ = torch.linalg.qr(gaussian(20, 5))
    W = block_reflector(V, ridge=0.0)
    assert_close(W @ W.mT, torch.eye(20).double(), atol=1e-12, rtol=0)


def test_square_v_gives_minus_identity() -> None:
    V = torch.eye(6, dtype=torch.float64) + 0.1 * gaussian(6, 6)
    assert_close(block_reflector(V, ridge=0.0), -torch.eye(6).double(), atol=1e-10, rtol=0)


@pytest.mark.parametrize("V", [torch.zeros(5, 2), torch.ones(5, 2), 1e-20 * torch.ones(5, 2), 1e20 * torch.eye(5, 2)])
def test_ridge_keeps_degenerate_v_a_contraction(V: torch.Tensor) -> None:
    W = block_reflector(V.double())
    assert torch.linalg.matrix_norm(W, 2) <= 1 + 1e-6


def test_zero_v_is_the_identity() -> None:
    assert_close(block_reflector(torch.zeros(5, 2)), torch.eye(5))


def test_reflector_does_not_see_the_scale_of_v() -> None:
    V = gaussian(7, 3)
    assert_close(block_reflector(V), block_reflector(1e12 * V))


def test_bro_commutes_with_unitary_conjugation() -> None:
    """Lemma 3: BRO(J V J*) = J BRO(V) J*."""
    p = 6
    generator = torch.Generator().manual_seed(1)
    J, _ = torch.linalg.qr(torch.randn(p, p, dtype=torch.complex128, generator=generator))
    V = torch.randn(p, p, dtype=torch.complex128, generator=generator)
    V = V @ torch.diag(torch.tensor([1.0, 1, 1, 0, 0, 0], dtype=torch.complex128))  # rank three, so that it is not -I
    left = block_reflector(J @ V @ J.mH)
    right = J @ block_reflector(V) @ J.mH
    assert_close(left, right, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("c_in", "c_out"), [(6, 6), (3, 6), (6, 3)])
def test_factored_form_equals_the_truncated_reflector(c_in: int, c_out: int) -> None:
    V, x = gaussian(6, 2), gaussian(c_in, 4, seed=1)
    scaled = unit_scaled(V)
    inverse = dense_inverse(scaled, ridge=RIDGE)
    expected = block_reflector(V, ridge=RIDGE)[:c_out, :c_in] @ x
    assert_close(reflect(x, scaled, inverse, c_out=c_out, ridge=RIDGE), expected)


def test_inverse_has_the_gradient_of_the_inverse() -> None:
    A = gaussian(5, 5)
    S = (A @ A.mT + torch.eye(5)).requires_grad_()
    assert torch.autograd.gradcheck(lambda S: symmetric_inverse((S + S.mT) / 2), S)


def test_embedding_fills_with_zeros_and_cuts() -> None:
    x = gaussian(3, 2)
    assert_close(embed_channels(x, 5, dim=0)[:3], x)
    assert embed_channels(x, 5, dim=0)[3:].count_nonzero() == 0
    assert_close(embed_channels(x, 2, dim=0), x[:2])


@pytest.mark.parametrize(("c_in", "c_out"), [(6, 6), (3, 6), (6, 3)])
def test_factored_form_has_the_gradient_of_the_formed_reflector(c_in: int, c_out: int) -> None:
    V, x = gaussian(6, 2).requires_grad_(), gaussian(c_in, 5, seed=1).requires_grad_()
    g, ridge = gaussian(c_out, 5, seed=2), 0.1
    ours = reflect(x, V, dense_inverse(V.detach(), ridge=ridge), c_out=c_out, ridge=ridge)
    theirs = block_reflector(V, ridge=ridge)[:c_out, :c_in] @ x
    assert_close(ours, theirs)
    for a, b in zip(
        torch.autograd.grad((ours * g).sum(), (x, V)), torch.autograd.grad((theirs * g).sum(), (x, V)), strict=True
    ):
        assert_close(a, b)
