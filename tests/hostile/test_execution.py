"""Radii proved for float32 hold where the program of the proof runs in float32, its numbers rounded."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx, nn
from typer.testing import CliRunner

from bronet import Chain, certified_radius, prove
from bronet.attack import l2_pgd
from bronet.certificates.execution import execute_run
from bronet.certificates.run import certify_run
from bronet.cli import app
from bronet.data import load_dataset
from bronet.export.program import proved_program
from bronet.graph.network import ProvedNetwork
from bronet.layers import BROConv2d, BROLinear, Flatten, LastLayerNormalized, MaxMin
from bronet.proof.proved_map import FLOAT32, executed_in
from bronet.run.folder import open_run
from bronet.run.weights import load_model
from tiny_run import train_tiny_run

EPSILON = 2.0**-23

pytestmark = pytest.mark.usefixtures("one_thread")


def network_in_float32(model: nn.Module, shape: tuple[int, ...]) -> ProvedNetwork:
    with executed_in(FLOAT32):
        return prove(model, shape)


def program_in_float32(network: ProvedNetwork) -> fx.GraphModule:
    """The program of a proof with every number rounded to float32, so that every operation is one of float32."""
    program = proved_program(network).module()
    for node in program.graph.nodes:
        if node.op == "get_attr":
            number = getattr(program, node.target)
            setattr(program, node.target, number.float() if number.is_floating_point() else number)
    return program


def biased(seed: int, size: float) -> Chain:
    """A small convolutional network whose head has biases of this size: they cost float32 its digits."""
    torch.manual_seed(seed)
    layers = {"conv": BROConv2d(4, 4), "act": MaxMin(), "flat": Flatten(), "dense": BROLinear(64, 16), "act2": MaxMin()}
    model = Chain((4, 4, 4), layers, LastLayerNormalized(16, 3)).eval()
    with torch.no_grad():
        model.head.bias.copy_(size + torch.rand(3))
    return model


def neighbours(images: Tensor, generator: torch.Generator) -> Tensor:
    """The same points, every pixel moved by a few units in the last place."""
    ulps = torch.randint(-3, 4, images.shape, generator=generator)
    return images * (1 + ulps * EPSILON)


@pytest.mark.parametrize("size", [0.0, 1e4, *(pytest.param(size, marks=pytest.mark.slow) for size in (1e2, 1e6))])
def test_no_point_within_a_float32_radius_changes_the_class_of_the_float32_program(size: float) -> None:
    """Points just inside the radius, on the way to the runner-up and beside it, by the hundred for each image."""
    generator = torch.Generator().manual_seed(0)
    for seed in range(2):
        model = biased(seed, size)
        images = torch.rand(8, 4, 4, 4, generator=generator, dtype=torch.float64)
        network = network_in_float32(model, (4, 4, 4))
        with executed_in(FLOAT32):
            proved = network.certify(images)
        wide = prove(model, (4, 4, 4)).certify(images)
        assert (proved.radius <= wide.radius).all()
        assert size > 0 or (wide.radius - proved.radius < 2e-3).all()
        program = program_in_float32(prove(model, (4, 4, 4)))
        radius = proved.radius.clamp_min(0)
        nearest = l2_pgd(network.logits, images, proved.prediction, eps=radius, steps=20).images
        for _ in range(40):
            points = neighbours(images + (nearest - images) * (1 - 1e-5), generator).float()
            inside = (points.double() - images).flatten(1).norm(dim=1) < radius
            changed = program(points).argmax(dim=1) != proved.prediction
            assert not (inside & changed).any()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny_run(tmp_path_factory.mktemp("execution") / "run")


def test_float32_logits_stay_within_the_budget(trained: Path) -> None:
    model = load_model(open_run(trained))
    images = load_dataset("digits", "test").pixels(torch.arange(100), dtype=torch.float64)
    network = network_in_float32(model, (1, 8, 8))
    with executed_in(FLOAT32):
        proved = network.certify(images)
    program = program_in_float32(prove(model))
    error = (program(images.float()).double() - network.logits(images)).abs().amax(dim=1)
    assert (2 * error <= proved.rounding).all()
    assert (proved.radius > 0.5 * prove(model).certify(images).radius).double().mean() > 0.8  # and is of use


def test_the_proof_for_float64_is_as_it_was() -> None:
    """What is proved for another arithmetic in between leaves no trace."""
    model, images = biased(0, 1.0), torch.rand(4, 4, 4, 4, dtype=torch.float64)
    before = certified_radius(model, images)
    network_in_float32(model, (4, 4, 4))
    assert torch.equal(certified_radius(model, images), before)


def test_the_command_says_how_many_radii_survive(trained: Path) -> None:
    words = ["certify", str(trained), "--limit", "50", "--eps", "1/4", "--execution"]
    shown = CliRunner().invoke(app, [*words, "float32"])
    assert shown.exit_code == 0, shown.output
    (line,) = (line for line in shown.stdout.splitlines() if line.startswith("float32: "))
    survive, radii = map(int, re.findall(r"\d+", line.removeprefix("float32: "))[:2])
    assert 0.8 * radii < survive <= radii <= 50
    bf16 = CliRunner().invoke(app, [*words, "bf16"])
    refused = bf16.exit_code == 2 and "bf16 must be known to every layer on this device" in bf16.stderr
    assert refused or "bf16: not proved" in bf16.stdout


def test_more_digits_give_no_smaller_share(trained: Path) -> None:
    certify_run(trained, eps=("1/10", "1/4"), limit=50)
    done = execute_run(trained, "float32")
    assert done.surviving is not None
    assert all(narrow <= wide for wide, narrow in done.certified.values())
    assert done.largest_difference < 1e-4
