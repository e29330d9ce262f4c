"""On a GPU: every rival layer computes what it computes on the CPU, and can be trained."""

import pytest
import torch
from torch.testing import assert_close

from bronet.layers import CONVOLUTIONS
from bronet.models import build_model
from bronet.recipe import named_recipe
from bronet.recipe.architecture import LipConvNetArchitecture
from bronet.recipe.schema import DatasetSpec
from bronet.training.statistics import Tally
from bronet.training.step import TrainStep

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
KINDS = list(CONVOLUTIONS)


@pytest.mark.parametrize("kind", KINDS)
def test_forward_backward_and_proof_equal_those_of_the_cpu(kind: str) -> None:
    torch.manual_seed(0)
    layer = CONVOLUTIONS[kind](6, 8, input_size=(6, 6), dtype=torch.float64)
    x = torch.randn(3, 6, 6, 6, dtype=torch.float64)
    layer(x).square().sum().backward()
    expected, gradient = layer(x).detach(), [p.grad.clone() for p in layer.parameters() if p.grad is not None]
    proved = layer.proved((6, 6, 6))
    layer.zero_grad()
    layer.cuda()
    layer(x.cuda()).square().sum().backward()
    assert_close(layer(x.cuda()).detach().cpu(), expected)
    for parameter, wanted in zip((p for p in layer.parameters() if p.grad is not None), gradient, strict=True):
        assert parameter.grad is not None
        assert_close(parameter.grad.cpu(), wanted, atol=1e-8, rtol=1e-6)
    assert layer.proved((6, 6, 6)).lipschitz == pytest.approx(proved.lipschitz, rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_training_steps_run_recorded_or_not_and_stay_finite(kind: str) -> None:
    spec = DatasetSpec("random", 3, 32, 32, 10)
    architecture = LipConvNetArchitecture(depth=5, width=8, backbone=kind)  # type: ignore[arg-type]
    model = build_model(architecture, spec, device="cuda").train()
    recipe = named_recipe("cifar10/lipconvnet-5-32")
    tally = Tally(eps=0.1, device="cuda")
    step = TrainStep(recipe, model, tally)
    images, labels = torch.rand(16, 3, 32, 32, device="cuda"), torch.randint(10, (16,), device="cuda")
    for number in range(6):  # the first few are ordinary, then a graph is recorded and replayed
        step(images, labels, number=number, learning_rate=0.01, emma_eps=0.1)
    assert tally.first_bad_step() is None
