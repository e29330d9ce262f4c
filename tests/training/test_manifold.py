"""Adam on orthogonal matrices: they stay orthogonal, the exponential errs as its series does, a state comes back."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bronet.certificates.run import certify_run
from bronet.errors import BronetError
from bronet.graph import prove
from bronet.recipe import OptimRecipe
from bronet.recipe.architecture import LipNeXtArchitecture
from bronet.run.weights import load_model
from bronet.training.distributed import copy_wholes
from bronet.training.manifold import ManifoldAdam, fast_exponential, retracted
from bronet.training.optimizers import Optimizer, build_optimizer
from bronet.training.run import train_recipe
from tiny_run import tiny_recipe

SIZES = (7, 12)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def parameters(dtype: torch.dtype) -> list[nn.Parameter]:
    """Return two orthogonal matrices and a bias."""
    matrices = [torch.linalg.qr(draw(n, n, seed=n)).Q.to(dtype) for n in SIZES]
    return [nn.Parameter(value) for value in (*matrices, draw(5, dtype=dtype))]


def manifold(all_: list[nn.Parameter], **settings: float) -> Optimizer:
    recipe = OptimRecipe(**({"name": "manifold", "lr": 1e-2} | settings))  # type: ignore[arg-type]
    return build_optimizer(recipe, all_, matrices=all_[:-1])


def take(optimizer: Optimizer, all_: list[nn.Parameter], *, first: int, last: int, rate: float) -> None:
    for step in range(first, last):
        for index, parameter in enumerate(all_):
            parameter.grad = draw(*parameter.shape, seed=100 * step + index, dtype=parameter.dtype)
        optimizer.prepare(rate)
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rate", [1e-3, 1e-2, 0.3])
def test_matrices_are_orthogonal_after_every_step(dtype: torch.dtype, rate: float) -> None:
    all_ = parameters(dtype)
    optimizer = manifold(all_, lookahead_steps=4)
    start = [matrix.detach().clone() for matrix in all_]
    for step in range(30):
        take(optimizer, all_, first=step, last=step + 1, rate=rate)
        for matrix in (parameter.detach() for parameter in all_[:-1]):
            n = len(matrix)
            error = torch.linalg.matrix_norm(matrix.mT @ matrix - torch.eye(n, dtype=dtype), 2)
            assert float(error) <= max(1e-10, 10 * n * torch.finfo(dtype).eps)
    assert all(float((matrix.detach() - old).abs().max()) > rate for matrix, old in zip(all_, start, strict=True))


def test_a_step_goes_down_along_the_manifold() -> None:
    X, target = parameters(torch.float64)[1], torch.linalg.qr(draw(12, 12, seed=5)).Q
    target[:, 0] *= float(
        torch.linalg.det(target).sign() * torch.linalg.det(X.detach()).sign()
    )  # in the same component
    optimizer = manifold([X, nn.Parameter(draw(5))], lookahead_steps=0)
    distances = []
    for _ in range(600):
        X.grad = X.detach() - target
        distances.append(float((X.detach() - target).norm()))
        optimizer.prepare(2e-2)
        optimizer.step()
    assert distances[-1] < 0.05 * distances[0]


@pytest.mark.parametrize("size", [1e-6, 0.049, 0.2, 0.9, 3.0])
def test_the_exponential_errs_by_the_first_term_that_its_series_leaves_out(size: float) -> None:
    D = draw(9, 9)
    D = (D - D.mT) * (size / torch.linalg.matrix_norm(D - D.mT))
    order = next((order for limit, order in ((0.05, 2), (0.25, 3), (1.0, 4)) if size < limit), None)
    error = float(torch.linalg.matrix_norm(fast_exponential(D) - torch.linalg.matrix_exp(D), 2))
    allowed = 0.0 if order is None else size ** (order + 1) / math.factorial(order + 1)
    assert error <= allowed + 1e-14
    assert order is None or size < 0.04 or error > 0.1 * float(torch.linalg.matrix_norm(D, 2)) ** (order + 1) / 120


def test_a_retraction_brings_singular_values_to_one_and_keeps_the_polar_factor() -> None:
    Q, e = torch.linalg.qr(draw(6, 6)).Q, 1e-2
    U = torch.linalg.qr(draw(6, 6, seed=1)).Q
    found = retracted(Q @ (U * (1 + e * torch.linspace(-1, 1, 6, dtype=torch.float64))) @ U.mT)
    assert float(torch.linalg.matrix_norm(found - Q, 2)) <= 5 * e**4


def test_a_stored_state_goes_on_as_if_it_had_not_been_stored() -> None:
    through, resumed = parameters(torch.float32), parameters(torch.float32)
    first, second = manifold(through, lookahead_steps=4), manifold(resumed, lookahead_steps=4)
    take(first, through, first=0, last=6, rate=1e-2)
    with torch.no_grad():
        for parameter, trained in zip(resumed, through, strict=True):
            parameter.copy_(trained)
    copy_wholes(first.tensors(), into=second.tensors())
    take(first, through, first=6, last=12, rate=1e-2)
    take(second, resumed, first=6, last=12, rate=1e-2)
    assert all(torch.equal(one, other) for one, other in zip(through, resumed, strict=True))


def test_a_trained_network_is_proved_to_change_no_distance_by_more_than_rounding(tmp_path: Path) -> None:
    recipe = tiny_recipe("train.epochs=2", "optim.name=manifold", "optim.lr=0.01")
    recipe = replace(recipe, model=LipNeXtArchitecture(depth=2, width=16, patch=2))
    run = train_recipe(recipe, tmp_path / "run", device="cpu", command="test")
    network = prove(load_model(run))
    assert network.lipschitz < 1 + 1e-4
    assert certify_run(run, limit=20).certificate.images == 20


def test_a_network_without_orthogonal_matrices_is_refused() -> None:
    with pytest.raises(
        BronetError, match=r"optim\.name manifold needs the orthogonal matrices of LipNeXt .* got 0 of 3; use nadam"
    ):
        build_optimizer(OptimRecipe(name="manifold", lr=1e-3), parameters(torch.float32))
    assert isinstance(manifold(parameters(torch.float32)), ManifoldAdam)
