"""The inversion of Gram matrices by blocks: accurate where V is ill-conditioned, bounded where rounding spoils S."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from bronet.ortho import spd as blocks
from bronet.ortho.products import float32_products
from bronet.ortho.spd import TILE, inverse_by_blocks, inverse_factor

pytestmark = pytest.mark.usefixtures("one_thread")


def grown(n: int, largest: float) -> Tensor:
    """Return V, 2n x n, near the identity but for one direction grown to `largest`: what SGD does to a raw V."""
    generator = torch.Generator().manual_seed(n)
    left, right = torch.randn(3, 2 * n, 1, generator=generator), torch.randn(3, n, 1, generator=generator)
    noise = 0.1 * torch.randn(3, 2 * n, n, generator=generator) / n**0.5
    direction = left @ right.mT / (left.norm(dim=1, keepdim=True) * right.norm(dim=1, keepdim=True))
    return torch.eye(2 * n, n) + noise + largest * direction


def projection_norm(V: Tensor, inverse: Tensor) -> float:
    """Return the largest |V P V'|: 1 for the exact P, and the reflector is I - 2 V P V'."""
    V = V.double()
    return float(torch.linalg.matrix_norm(V @ inverse.double() @ V.mT, 2).max())


@pytest.mark.parametrize("n", [1, 7, 31, TILE, TILE + 1, 2 * TILE, 200])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-12)])
def test_blocks_give_the_inverse(n: int, dtype: torch.dtype, tolerance: float) -> None:
    V = grown(n, 3.0).to(dtype)
    S = V.mT @ V
    assert_close(inverse_by_blocks(S) @ S, torch.eye(n, dtype=dtype).expand_as(S), atol=tolerance, rtol=0)


@pytest.mark.parametrize("n", [TILE, 4 * TILE])
def test_a_large_condition_leaves_reflectors_orthogonal(n: int) -> None:
    """At a condition of 2e4 Schur complements through explicit inverses gave norms of 13 (n = 64) and 5e5 (n = 256)."""
    V = grown(n, 100.0)
    assert projection_norm(V, inverse_by_blocks(V.mT @ V)) < 1.01


@pytest.mark.parametrize("largest", [1e4, 1e5, 1e7])
def test_a_gram_matrix_that_rounding_made_indefinite_has_a_bounded_inverse(largest: float) -> None:
    V = grown(4 * TILE, largest)
    S = V.mT @ V
    assert torch.linalg.eigvalsh(S.double()).amin() < 0
    P = inverse_by_blocks(S)
    assert P.isfinite().all()
    assert projection_norm(V, P) < 1.2


def test_only_the_lower_triangle_is_read() -> None:
    V = grown(2 * TILE, 3.0)
    S = V.mT @ V
    spoiled = S.tril() + torch.full_like(S, 1e9).triu(1)
    assert torch.equal(inverse_factor(spoiled), inverse_factor(S))


def test_the_factor_is_computed_without_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounded to TF32 a Schur complement of a condition of 1000 may be indefinite."""
    seen: list[bool] = []
    eliminated = blocks.eliminated

    def watched(S: Tensor) -> Tensor:
        seen.append(torch.backends.cuda.matmul.allow_tf32)
        return eliminated(S)

    monkeypatch.setattr(blocks, "eliminated", watched)
    with float32_products(tf32=True):
        inverse_by_blocks(torch.eye(2 * TILE).expand(1, -1, -1))
        assert torch.backends.cuda.matmul.allow_tf32
    assert seen == [False, False]
