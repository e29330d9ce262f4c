"""No bound lies below the truth, whatever the weights: thousands of layers against their explicit Jacobians.

Seeds 0 and 1 are tried always, the others in the slow suite (`make hostile`).
"""

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from bronet.layers import CholeskyLinear, LastLayerNormalized, LipschitzRegularizedConv2d
from bronet.proof.proved_map import ProvedMap
from bronet.proof.spectral import circulant_norm, explicit_norm
from hostile import KINDS, LAYERS, LINEAR_UP_TO_A_SHIFT, hostile
from jacobian import jacobian

SEEDS = {"few": range(2), "many": range(2, 8)}
CASES_REQUIRED = 5000
BATCHES = ["few", pytest.param("many", marks=pytest.mark.slow)]
# An explicit Jacobian has the rounding of the map in it, and singular values are computed: both far below this.
COMPUTED = 1e-13

pytestmark = pytest.mark.usefixtures("one_thread")


def _explicit(name: str, proved: ProvedMap, seed: int) -> Tensor:
    """Return the Jacobian of the proved map: of its linear part, or at a random point where it is not linear."""
    shape = LAYERS[name][1]
    if name in LINEAR_UP_TO_A_SHIFT:
        return jacobian(proved.apply, shape)
    point = torch.randn(1, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    J = torch.autograd.functional.jacobian(proved.apply, point)
    return J.reshape(-1, point.numel())


def test_there_are_thousands_of_cases() -> None:
    assert len(LAYERS) * len(KINDS) * sum(map(len, SEEDS.values())) >= CASES_REQUIRED


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", LAYERS)
def test_no_bound_lies_below_the_norm_of_the_explicit_jacobian(name: str, batch: str) -> None:
    shape = LAYERS[name][1]
    size = (shape[1], shape[2]) if len(shape) == 3 else None
    labels, bounds, found = [], [], []
    for kind in KINDS:
        for seed in SEEDS[batch]:
            layer = hostile(name, kind, seed)
            proved = layer.proved(shape)
            labels.append(f"{kind}, seed {seed}")
            bounds.append((proved.lipschitz, layer.lipschitz_bound(size)))
            found.append(_explicit(name, proved, seed))
            assert math.isfinite(proved.gain), labels[-1]
            assert math.isfinite(proved.offset), labels[-1]
    true = torch.linalg.matrix_norm(torch.stack(found), 2)
    assert true.isfinite().all()
    wrong = [
        (label, norm, pair)
        for label, norm, pair in zip(labels, true.tolist(), bounds, strict=True)
        if norm * (1 - COMPUTED) > min(pair)
    ]
    assert wrong == []
    print(f"layers {name}: {len(bounds)} cases, {sum(map(len, bounds))} bounds, none below the truth")


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", [name for name in LAYERS if name.startswith("convolution")])
def test_circulant_bounds_lie_above_the_explicit_norm(name: str, batch: str) -> None:
    shape = LAYERS[name][1]
    size = (shape[1], shape[2])
    for kind in KINDS:
        for seed in SEEDS[batch]:
            layer = hostile(name, kind, seed)
            assert isinstance(layer, LipschitzRegularizedConv2d)
            kernel, stride, padding = layer.derive(torch.float64).detach(), layer.stride, layer.padding
            true = float(torch.linalg.matrix_norm(jacobian(layer.proved(shape).apply, shape), 2))
            for bound in (explicit_norm, circulant_norm):
                assert true * (1 - COMPUTED) <= bound(kernel, size, stride=stride, padding=padding), (kind, seed)


def _is_positive_semidefinite(M: list[list[Fraction]]) -> bool:
    """Decide by elimination in rational arithmetic: no rounding at all."""
    M = [row[:] for row in M]
    for k in range(len(M)):
        if M[k][k] < 0 or (M[k][k] == 0 and any(M[k][j] != 0 for j in range(k, len(M)))):
            return False
        for i in range(k + 1, len(M)):
            if M[k][k] != 0:
                factor = M[i][k] / M[k][k]
                M[i] = [a - factor * b for a, b in zip(M[i], M[k], strict=True)]
    return True


@pytest.mark.parametrize("name", ["cholesky wide", "cholesky tall", "normalised head"])
@pytest.mark.parametrize("kind", KINDS)
def test_bounds_hold_in_exact_rational_arithmetic(name: str, kind: str) -> None:
    """Float64 cannot tell 1 from 1 + 1e-17. The matrix is read off exactly: products with unit vectors do not round."""
    layer, shape = hostile(name, kind, 0), LAYERS[name][1]
    assert isinstance(layer, CholeskyLinear | LastLayerNormalized)
    if isinstance(layer, LastLayerNormalized):
        torch.nn.init.zeros_(layer.bias)
    proved = layer.proved(shape)
    J = jacobian(proved.apply, shape)
    J = J if J.shape[0] >= J.shape[1] else J.mT
    columns = [[Fraction(entry) for entry in column] for column in J.mT.tolist()]
    square = Fraction(proved.lipschitz) ** 2
    gap = [
        [(square if i == j else 0) - sum(a * b for a, b in zip(p, q, strict=True)) for j, q in enumerate(columns)]
        for i, p in enumerate(columns)
    ]
    assert _is_positive_semidefinite(gap)


def test_the_rational_test_can_fail() -> None:
    identity = [[Fraction(int(i == j)) for j in range(3)] for i in range(3)]
    assert _is_positive_semidefinite(identity)
    identity[2][2] = Fraction(-1, 10**40)
    assert not _is_positive_semidefinite(identity)
