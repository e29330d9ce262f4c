"""Muon: what Newton-Schulz does to singular values, which parameters it steps on, and how far."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from bronet.errors import BronetError
from bronet.layers import LastLayerNormalized, Normalization
from bronet.layers.shape import Flatten
from bronet.models import Chain, build_model
from bronet.recipe import BRONetArchitecture, LipConvNetArchitecture, OptimRecipe, dataset_spec, named_recipe, override
from bronet.recipe.schema import DatasetSpec
from bronet.training.distributed import copy_wholes
from bronet.training.muon import Muon, muon_matrices, newton_schulz
from bronet.training.optimizers import Optimizer, build_optimizer
from bronet.training.run import train_recipe
from bronet.training.statistics import Tally
from bronet.training.step import TrainStep

SMALLEST, LARGEST = 0.68, 1.14
SHAPES = [(6, 6), (8, 20), (20, 8), (5, 1), (1, 5)]
BRONET = BRONetArchitecture(width=8, depth=2, dense_width=16, dense_depth=1)
LIPCONVNET = LipConvNetArchitecture(depth=10, width=2, activation="householder1")
IMAGES = DatasetSpec("random", 3, 32, 32, 10)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def with_values(m: int, n: int, smallest: float) -> torch.Tensor:
    """Return a matrix whose singular values lie evenly from `smallest` to one."""
    U, _, V = torch.linalg.svd(draw(m, n), full_matrices=False)
    return (U * torch.linspace(smallest, 1, min(m, n), dtype=U.dtype)) @ V


def weights(dtype: torch.dtype = torch.float32) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return two matrices of one shape, a kernel and a bias, and those of them that Muon steps on."""
    shapes = ((4, 6), (7,), (4, 6), (6, 3, 3, 3))
    all_ = [nn.Parameter(draw(*shape, seed=seed, dtype=dtype)) for seed, shape in enumerate(shapes)]
    return all_, [parameter for parameter in all_ if parameter.ndim > 1]


def muon(parameters: list[nn.Parameter], matrices: list[nn.Parameter], **settings: float) -> Optimizer:
    recipe = OptimRecipe(**({"name": "muon", "lr": 0.1} | settings))  # type: ignore[arg-type]
    return build_optimizer(recipe, parameters, matrices=matrices)


def set_gradients(parameters: list[nn.Parameter], step: int, scale: float = 1.0) -> None:
    for index, parameter in enumerate(parameters):
        parameter.grad = scale * draw(*parameter.shape, seed=100 * step + index, dtype=parameter.dtype)


@pytest.mark.parametrize(("m", "n"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_newton_schulz_brings_singular_values_near_one_and_keeps_the_vectors(
    m: int, n: int, dtype: torch.dtype
) -> None:
    G = with_values(m, n, 0.1)
    X = newton_schulz(G[None].to(dtype), dtype=dtype)[0].double()
    values = torch.linalg.svdvals(X)
    assert values.min() >= SMALLEST
    assert values.max() <= LARGEST
    U, _, V = torch.linalg.svd(G, full_matrices=False)
    assert_close(U.mT @ X @ V.mT, torch.diag(torch.diagonal(U.mT @ X @ V.mT)), atol=1e-5, rtol=0)
    assert_close(U @ (U.mT @ X), X, atol=1e-5, rtol=0)
    assert_close((X @ V.mT) @ V, X, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_a_batch_is_orthogonalised_as_each_matrix_alone(m: int, n: int) -> None:
    G = draw(5, m, n) * torch.tensor([1, 1e-3, 1e3, 0, 1], dtype=torch.float64).view(5, 1, 1)
    together = newton_schulz(G, dtype=torch.float64)
    alone = torch.cat([newton_schulz(matrix[None], dtype=torch.float64) for matrix in G])
    assert_close(together, alone)
    assert not together[3].any()


def test_muon_equals_its_definition() -> None:
    """Two matrices of one shape and a kernel, beside a bias that gets NAdam; weight decay in the gradient."""
    rate, momentum, decay = 0.02, 0.95, 0.1
    parameters, matrices = weights(torch.float64)
    optimizer = muon(parameters, matrices, lr=rate, momentum=momentum, weight_decay=decay)
    bias = nn.Parameter(parameters[1].detach().clone())
    nadam = torch.optim.NAdam([bias], lr=rate, weight_decay=decay)
    expected = [matrix.detach().clone() for matrix in matrices]
    momenta = [torch.zeros_like(matrix) for matrix in matrices]
    for step in range(4):
        set_gradients(parameters, step)
        bias.grad = parameters[1].grad
        for index, matrix in enumerate(matrices):
            assert matrix.grad is not None
            gradient = matrix.grad + decay * expected[index]
            momenta[index] = momentum * momenta[index] + gradient
            ahead = (gradient + momentum * momenta[index]).flatten(1)
            update = 0.2 * math.sqrt(max(ahead.shape)) * newton_schulz(ahead[None], dtype=torch.float64)[0]
            expected[index] = expected[index] - rate * update.view(matrix.shape)
        versions = [parameter._version for parameter in parameters]
        optimizer.prepare(rate)
        optimizer.step()
        nadam.step()
        assert all(p._version > before for p, before in zip(parameters, versions, strict=True))
    for matrix, wanted in zip(matrices, expected, strict=True):
        assert_close(matrix.detach(), wanted, atol=1e-6, rtol=1e-6)  # the rate is a number of float32
    assert_close(parameters[1], bias)


def test_an_update_is_as_long_as_adams_whatever_the_shape() -> None:
    rate = 0.01
    shapes = ((32, 32), (16, 64), (64, 16), (24, 8, 3, 3))
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in (*shapes, (3,))]
    optimizer = muon(parameters, parameters[:-1])
    set_gradients(parameters, 0)
    optimizer.prepare(rate)
    optimizer.step()
    for matrix in parameters[:-1]:
        assert 0.7 * 0.2 * rate < matrix.detach().square().mean().sqrt() < 1.2 * 0.2 * rate


def test_a_step_does_not_see_the_scale_of_the_gradient() -> None:
    results = []
    for scale in (1.0, 1e-3, 1e4):
        parameters, matrices = weights()
        optimizer = muon(parameters, matrices)
        for step in range(3):
            set_gradients(parameters, step, scale)
            optimizer.prepare(0.1)
            optimizer.step()
        results.append([matrix.detach() for matrix in matrices])
    for other in results[1:]:
        assert_close(other, results[0], atol=1e-4, rtol=1e-3)


def test_a_parameter_without_gradient_stays() -> None:
    parameters, matrices = weights()
    before = [parameter.detach().clone() for parameter in parameters]
    optimizer = muon(parameters, matrices)
    matrices[0].grad = torch.ones_like(matrices[0])
    optimizer.prepare(0.1)
    optimizer.step()
    changed = [not torch.equal(p, old) for p, old in zip(parameters, before, strict=True)]
    assert changed == [True, False, False, False]


def test_muon_leaves_bronets_stem_head_and_vectors_to_nadam() -> None:
    model = build_model(BRONET, dataset_spec("digits"))
    matrices = muon_matrices(model)
    names = {parameter: name for name, parameter in model.named_parameters()}
    assert {names[parameter] for parameter in matrices} == {
        "backbone.0.linear.weight",
        "backbone.1.linear.weight",
        "neck.conv.weight",
        "neck.dense.linear.weight",
        "dense.0.linear.weight",
    }


@pytest.mark.parametrize("head", ["bro", "lln"])
def test_muon_leaves_lipconvnets_head_and_angles_to_nadam(head: str) -> None:
    model = build_model(LipConvNetArchitecture(**(vars(LIPCONVNET) | {"head": head})), IMAGES)
    matrices = muon_matrices(model)
    names = {parameter: name for name, parameter in model.named_parameters()}
    assert len(matrices) == LIPCONVNET.depth
    for parameter in matrices:
        assert names[parameter].startswith("stages.")
        assert names[parameter].endswith("linear.weight")
    assert any("angles" in name for name in names.values())


def test_regularised_kernels_are_left_to_nadam() -> None:
    model = build_model(BRONetArchitecture(**(vars(BRONET) | {"backbone": "lipreg"})), dataset_spec("digits"))
    matrices = muon_matrices(model)
    assert not (set(model.backbone.parameters()) | set(model.stem.parameters())) & set(matrices)
    assert len(matrices) == 3


@pytest.mark.parametrize("momentum", [0.0, 0.95])
def test_restored_state_continues_with_the_same_bits(momentum: float) -> None:
    settings = {"weight_decay": 0.01, "momentum": momentum}
    (parameters, matrices), (copies, copied) = weights(), weights()
    optimizer = muon(parameters, matrices, **settings)
    for step in range(6):
        set_gradients(parameters, step)
        optimizer.prepare(0.1)
        optimizer.step()
    with torch.no_grad():
        torch._foreach_copy_(copies, parameters)
    restored = muon(copies, copied, **settings)
    copy_wholes(optimizer.tensors(), into=restored.tensors())
    for step in range(6, 12):
        for some, one in ((parameters, optimizer), (copies, restored)):
            set_gradients(some, step)
            one.prepare(0.1 / step)
            one.step()
    assert all(torch.equal(parameter, copy) for parameter, copy in zip(parameters, copies, strict=True))


def test_state_is_a_momentum_for_each_matrix_and_nadams_for_the_rest() -> None:
    optimizer = muon(*weights())
    others = {f"others.{key}" for key in ("step", "mu_product", "0.exp_avg", "0.exp_avg_sq")}
    assert optimizer.tensors().keys() == others | {f"{index}.momentum" for index in range(3)}


def test_a_network_without_orthogonal_layers_is_refused() -> None:
    head = LastLayerNormalized(3, 2)
    model = Chain((3, 1, 1), Normalization((0.5,) * 3), Flatten(), head)
    parameters = list(model.parameters())
    with pytest.raises(BronetError, match=r"muon needs matrices of .* got 0 of 2; use nadam") as error:
        build_optimizer(OptimRecipe(name="muon", lr=0.1), parameters, matrices=muon_matrices(model))
    assert "\n" not in str(error.value)
    with pytest.raises(BronetError, match="and others beside them, got 2 of 2"):
        muon(list(head.parameters()), list(head.parameters()))
    with pytest.raises(BronetError, match="among the parameters"):
        muon(list(head.parameters()), [nn.Parameter(torch.zeros(2, 2))])


def test_training_with_muon_learns(tmp_path: Path) -> None:
    settings = ["data.held_out=897", "model.width=8", "model.depth=1", "model.dense_depth=1", "model.dense_width=16"]
    settings += ["train.batch_size=40", "train.epochs=12", "optim.warmup_epochs=1", "optim.lr=3e-2"]
    settings += ["optim.name=muon", "optim.momentum=0.95", "optim.schedule=linear"]
    recipe = override(named_recipe("digits/quickstart"), settings)
    model = build_model(recipe.model, recipe.data.spec())
    assert isinstance(TrainStep(recipe, model, Tally(eps=0.1, device="cpu")).optimizer, Muon)
    run = train_recipe(recipe, tmp_path / "run", progress=False)
    log = [json.loads(line) for line in run.log.read_text().splitlines()]
    assert log[-1]["loss"] < 0.8 * log[0]["loss"]
    assert log[-1]["accuracy"] > 3 * log[0]["accuracy"]
