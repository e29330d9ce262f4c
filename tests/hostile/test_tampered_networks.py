"""Biases made to break certificates by rounding (Murray, arXiv 2603.13334), and models that hide what they do.

Other holes that were once found have their tests in tests/proof/test_seal.py, tests/graph and tests/layers.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bronet import BronetError, Chain, check, prove
from bronet.certificates.run import certify_run
from bronet.certificates.verify import verify_run
from bronet.graph.network import ProvedNetwork
from bronet.layers import Bias, Block, BROConv2d, Flatten, LastLayerNormalized, LipschitzLayer, MaxMin, PixelUnshuffle
from bronet.radius import margin_radius
from bronet.report.evidence import read_evidence
from tiny_run import train_tiny_run

pytestmark = pytest.mark.usefixtures("one_thread")

DEPTH = 6
IMAGES = 40
NEIGHBOURS = 30


def deep(size: float, seed: int) -> ProvedNetwork:
    """Isometries with biases of this size, which the head's bias takes back: margins are small, what is added huge.

    Gradients are as steep as the constants say, so that points on the border of the ball are where classes meet. The
    kernels are in float32, which decides how closely `prove` compares the model with its proof.
    """
    torch.manual_seed(seed)
    layers: list[LipschitzLayer] = [PixelUnshuffle(2)]
    for _ in range(DEPTH):
        bias = Bias(4, dtype=torch.float64)
        with torch.no_grad():
            bias.bias.normal_(std=size)
        layers += [BROConv2d(4, 4, padding_mode="circular"), bias]
    head = LastLayerNormalized(16, 3, dtype=torch.float64)
    model = Chain((1, 4, 4), *layers, Flatten(), head).eval()
    with torch.no_grad():
        at_zero = prove(model).logits(torch.zeros(1, 1, 4, 4, dtype=torch.float64))[0]
        head.bias.copy_(-at_zero.nan_to_num(0.0, 0.0, 0.0))
    return prove(model)


def broken(network: ProvedNetwork, images: Tensor, t: Tensor, radius: Tensor) -> Tensor:
    """Which images have a point of another class in the ball: on its border towards each class, and ulps beside."""
    generator, found = torch.Generator().manual_seed(1), torch.zeros(len(images), dtype=torch.bool)
    for j in range(3):
        x = images.clone().requires_grad_()
        logits = network.logits(x)
        margin = logits.gather(1, t[:, None])[:, 0] - logits[:, j]
        (gradient,) = torch.autograd.grad(margin.sum(), x)
        steps = gradient / gradient.flatten(1).norm(dim=1).clamp_min(1e-300)[:, None, None, None]
        for _ in range(NEIGHBOURS):
            ulps = torch.randint(-4, 5, images.shape, generator=generator) * 2.0**-53
            points = images - radius[:, None, None, None] * (1 - 1e-9) * steps + ulps
            inside = (points - images).flatten(1).norm(dim=1) < radius * (1 - 1e-12)
            found |= inside & (network.logits(points).argmax(dim=1) != t)
    return found


@pytest.mark.parametrize("size", [1e6, 1e8, 1e9])
def test_no_radius_breaks_by_rounding_on_deep_networks_with_huge_biases(size: float) -> None:
    images = torch.rand(IMAGES, 1, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    naive_broken = certified = 0
    for seed in range(3):
        network = deep(size, seed)
        proved = network.certify(images)
        assert not broken(network, images, proved.prediction, proved.radius.clamp_max(10)).any()
        naive = margin_radius(network.logits(images), network.gap_lipschitz)
        naive_broken += int(broken(network, images, naive.prediction, naive.radius).sum())
        certified += int((proved.radius > 0).sum())
    assert size < 1e9 or naive_broken > 0  # so rounding does break radii that do not count it
    assert certified > IMAGES  # and the budget leaves something to certify


@pytest.mark.parametrize("size", [1e15, 1e100, 1e200, 1e300])
def test_where_rounding_drowns_the_model_nothing_is_proved(size: float) -> None:
    with pytest.raises(BronetError) as refusal:
        deep(size, 0)
    assert "\n" not in str(refusal.value)


class BeyondTheSample(Block):
    """A block that does what it says on images in [0, 1], where a sample would look, and something else beyond."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return torch.where(y.abs() > 1e3, 100 * y, y)


def block() -> Block:
    return Block(BROConv2d(4, 4), Bias(4), MaxMin())


def hooked_block() -> nn.Module:
    inner = block()
    inner.register_forward_hook(lambda module, inputs, output: 100 * output)
    return nn.Sequential(inner)


def hooked_part() -> nn.Module:
    inner = block()
    inner.linear.register_forward_hook(lambda module, inputs, output: 100 * output)
    return nn.Sequential(inner)


def patched_convolution() -> nn.Module:
    conv = nn.Conv2d(4, 4, 3)
    plain = conv._conv_forward
    conv._conv_forward = lambda *arguments: 100 * plain(*arguments)  # type: ignore[method-assign]
    return nn.Sequential(conv)


def weight_norm() -> nn.Module:
    with pytest.warns(FutureWarning):
        return nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(64, 4)))


@pytest.mark.parametrize(
    "make",
    [
        hooked_block,
        hooked_part,
        patched_convolution,
        weight_norm,
        lambda: nn.Sequential(BeyondTheSample(BROConv2d(4, 4), Bias(4), MaxMin())),
    ],
    ids=["hooked block", "hooked part", "patched", "weight_norm", "beyond the sample"],
)
def test_a_model_that_does_something_else_than_it_says_has_no_bound(make: Callable[[], nn.Module]) -> None:
    found = check(make(), (4, 4, 4))
    assert found.lipschitz is None
    assert not found.certifiable
    with pytest.raises(BronetError):
        prove(make(), (4, 4, 4))


def test_what_a_model_does_in_evaluation_is_what_is_proved() -> None:
    class TwoFaced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.linear(x)
            return y if self.training else 100 * y

    model = TwoFaced().train()
    norm = float(torch.linalg.matrix_norm(model.linear.weight.detach(), 2))
    found = check(model, (4,)).lipschitz
    assert found is not None
    assert found >= 100 * norm * (1 - 1e-6)


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = train_tiny_run(tmp_path_factory.mktemp("edited") / "run")
    certify_run(folder, eps=("1/4",), limit=5)
    return folder


def _lipschitz_twice(text: str) -> str:
    return text.replace('"lipschitz":', '"lipschitz": 0.5,\n  "lipschitz":', 1)


def _changed(**facts: object) -> Callable[[str], str]:
    return lambda text: json.dumps({**json.loads(text), **facts})


@pytest.mark.parametrize(
    "edit",
    [
        _changed(lipschitz=-1.0),
        _changed(lipschitz=float("inf")),
        _changed(weights_sha256="0" * 64),
        _changed(eps=["1/4", "1/100"]),
        _changed(seal_sha256=None),
        _lipschitz_twice,
    ],
    ids=["negative", "infinite", "foreign weights", "another radius", "no seal", "a key twice"],
)
def test_a_certificate_that_was_edited_is_read_by_no_command(
    certified: Path, tmp_path: Path, edit: Callable[[str], str]
) -> None:
    copy = shutil.copytree(certified, tmp_path / "run")
    facts = copy / "certificate.json"
    facts.write_text(edit(facts.read_text()))
    for read in (read_evidence, verify_run):
        with pytest.raises(BronetError) as refusal:
            read(copy)  # type: ignore[operator]
        assert "\n" not in str(refusal.value)
