"""Proofs of norms: never below the truth, and close to it."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from bronet import BronetError
from bronet.proof.proved_map import Product, ProvedMap, gamma, rounding_of_products, up
from bronet.proof.spectral import (
    absolute_norm,
    circulant_norm,
    convolution_norm,
    explicit_norm,
    largest_eigenvalue,
    largest_singular_value,
)
from jacobian import jacobian


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=40, deadline=None)
@given(m=st.integers(1, 12), n=st.integers(1, 12), exponent=st.integers(-60, 60), seed=st.integers(0, 10**6))
def test_largest_singular_value_is_an_upper_bound_and_tight(m: int, n: int, exponent: int, seed: int) -> None:
    A = draw(3, m, n, seed=seed) * 10.0**exponent
    true = float(torch.linalg.svdvals(A).max())
    bound = largest_singular_value(A)
    assert true <= bound <= true * (1 + 1e-8)


def test_bound_of_a_diagonal_matrix_is_exact_in_rational_arithmetic() -> None:
    values = [3.0, 1.0, 0.5]
    bound = largest_eigenvalue(torch.diag(torch.tensor(values, dtype=torch.float64)))
    assert Fraction(3) <= Fraction(bound) <= Fraction(3) * (1 + Fraction(1, 2**30))


def test_nearly_degenerate_top_eigenvalues_are_still_bounded() -> None:
    Q, _ = torch.linalg.qr(draw(80, 80))
    spectrum = 1 - 1e-9 * torch.arange(80, dtype=torch.float64)
    M = (Q * spectrum) @ Q.mT
    bound = largest_eigenvalue(M, 1e-13)
    assert 1 <= bound <= 1 + 1e-7


def test_a_crowded_top_of_the_spectrum_is_bounded_tightly() -> None:
    """Training leaves a stem like this: hundreds of singular values within a percent of the largest."""
    Q, _ = torch.linalg.qr(draw(600, 600))
    spectrum = torch.cat((torch.linspace(1, 0.99, 150), torch.linspace(0.98, 0, 450))).double()
    M = (Q * spectrum) @ Q.mT
    assert 1 - 1e-12 <= largest_eigenvalue(M) <= 1 + 1e-4


def test_formation_error_is_added() -> None:
    assert largest_eigenvalue(torch.eye(3).double(), 0.5) >= 1.5


def test_zero_and_non_finite_matrices() -> None:
    assert largest_eigenvalue(torch.zeros(4, 4).double()) == 0
    with pytest.raises(BronetError, match="must be finite"):
        largest_eigenvalue(torch.full((2, 2), float("nan")))


CONVOLUTIONS = [(4, 3, 3, 1, 1, (6, 5)), (8, 2, 5, 2, 2, (8, 8)), (3, 5, 3, 2, 1, (7, 6)), (6, 3, 4, 4, 0, (8, 8))]


@pytest.mark.parametrize(("c_out", "c_in", "k", "stride", "padding", "size"), CONVOLUTIONS)
def test_convolution_bounds_hold_for_the_explicit_jacobian(
    c_out: int, c_in: int, k: int, stride: int, padding: int, size: tuple[int, int]
) -> None:
    kernel = draw(c_out, c_in, k, k)
    J = jacobian(lambda x: F.conv2d(x, kernel, stride=stride, padding=padding), (c_in, *size))
    true = float(torch.linalg.matrix_norm(J, 2))
    explicit = explicit_norm(kernel, size, stride=stride, padding=padding)
    circulant = circulant_norm(kernel, size, stride=stride, padding=padding)
    assert true <= explicit <= true * (1 + 1e-8)
    assert explicit * (1 - 1e-8) <= circulant <= true * 1.2


def test_large_images_use_the_circulant_bound() -> None:
    kernel = draw(4, 2, 3, 3)
    size = (64, 64)
    assert convolution_norm(kernel, size, stride=1, padding=1) == circulant_norm(kernel, size, stride=1, padding=1)


def test_absolute_norm_bounds_the_norm_of_absolute_values() -> None:
    A = draw(5, 6, 9)
    assert absolute_norm(A) >= float(torch.linalg.matrix_norm(A.abs(), 2).max())


def test_gain_covers_the_rounding_of_real_products() -> None:
    """The float32 computation of A_2 A_1 x, judged by its own unit roundoff, stays within the promise."""
    A, B, x = draw(40, 60), draw(30, 40, seed=1), draw(60, 50, seed=2)
    A, B, x = (t.float().double() for t in (A, B, x))
    products = [Product(largest_singular_value(M), absolute_norm(M), M.shape[1]) for M in (A, B)]
    scale = 2.0**29  # float32's unit roundoff over float64's
    gain = rounding_of_products(products)[0] * scale
    computed = (B.float() @ (A.float() @ x.float())).double()
    error = (computed - B @ (A @ x)).norm(dim=0)
    assert (error <= gain * x.norm(dim=0) * (1 + 1e-6)).all()
    assert (error > 0).any()


def test_gamma_and_up_round_up() -> None:
    assert Fraction(gamma(100)) >= Fraction(100, 2**53) / (1 - Fraction(100, 2**53))
    assert Fraction(up(0.1)) > Fraction(0.1)
    with pytest.raises(BronetError, match="a bound must be finite"):
        up(float("inf"))


@pytest.mark.parametrize("name", ["lipschitz", "gain", "offset"])
@pytest.mark.parametrize("value", [-1e-9, float("nan")])
def test_a_layer_cannot_promise_less_than_nothing(name: str, value: float) -> None:
    """A negative bound of one layer would eat up the rounding of the others."""
    promised = {"lipschitz": 1.0, "gain": 0.0, "offset": 0.0, name: value}
    with pytest.raises(BronetError, match=f"{name} of a proved map must be an upper bound of at least 0"):
        ProvedMap(lambda x: x, (1,), promised["lipschitz"], gain=promised["gain"], offset=promised["offset"])
