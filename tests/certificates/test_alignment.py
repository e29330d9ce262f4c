"""Alignment says which share of the proved constants gradients of margins reach, and is confirmed like all else."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bronet import BronetError, Chain, load_pretrained, prove
from bronet.certificates.run import alignment, certify_run
from bronet.certificates.verify import verify_run
from bronet.data import ImageSet, load_dataset
from bronet.graph.model import CertifiableModel
from bronet.layers import BROConv2d, BROLinear, Flatten, LastLayerNormalized, MaxMin, Normalization, PixelUnshuffle
from bronet.report.evidence import read_evidence
from bronet.report.page import markdown_summary
from bronet.report.table import json_summary
from certificates import edit_certificate
from tiny_run import train_tiny_run

pytestmark = pytest.mark.usefixtures("one_thread")


def images(count: int = 30) -> ImageSet:
    return load_dataset("digits", "test").subset(torch.arange(count))


def test_an_orthogonal_network_uses_all_of_its_constants() -> None:
    torch.manual_seed(0)
    conv = BROConv2d(4, 4, padding_mode="circular")
    layers = [Normalization((0.5,), std=0.25), PixelUnshuffle(2), conv, MaxMin(), Flatten(), BROLinear(64, 64)]
    found = alignment(prove(Chain((1, 8, 8), *layers, LastLayerNormalized(64, 10)).double().eval()), images())
    assert found.images == 30
    assert found.median == pytest.approx(1, abs=1e-5)
    assert found.layers == pytest.approx([1] * 6, abs=1e-5)


def test_shares_multiply_to_the_whole_of_one_image() -> None:
    model = load_pretrained("bronet-digits/digits")
    network = prove(model)
    found = alignment(network, images(1))
    known = [share for share in found.layers if share is not None]
    assert len(known) == len(network.layers)
    assert found.median == pytest.approx(float(torch.tensor(known).prod()), rel=1e-4)
    assert found.median < 1


def test_the_whole_is_the_gradient_over_the_constant_by_finite_differences() -> None:
    network = prove(load_pretrained("bronet-digits/digits"))
    x = images(1).pixels(torch.arange(1), dtype=torch.float64)

    def margin(x: Tensor) -> Tensor:
        logits = network.logits(x)[0]
        gaps, t = network.gap_lipschitz, int(logits.argmax())
        return torch.stack([(logits[t] - logits[j]) / gaps[t, j] for j in range(10) if j != t]).min()

    h = 1e-6
    steps = [h * torch.eye(64, dtype=torch.float64)[i].view(1, 1, 8, 8) for i in range(64)]
    gradient = torch.stack([(margin(x + step) - margin(x - step)) / (2 * h) for step in steps])
    assert float(gradient.norm()) == pytest.approx(alignment(network, images(1)).median, rel=1e-4)


def test_what_goes_two_ways_has_no_share_of_its_own() -> None:
    class Residual(CertifiableModel):
        def __init__(self) -> None:
            super().__init__((1, 8, 8))
            self.flatten, self.inner, self.head = Flatten(), BROLinear(64, 64), LastLayerNormalized(64, 10)

        def forward(self, images: Tensor) -> Tensor:
            x = self.flatten(images)
            return self.head((x + self.inner(x)) / 2)

    found = alignment(prove(Residual()), images())
    flatten, inner, together, half = found.layers
    assert (flatten, inner, together) == (1, None, None)
    assert half == pytest.approx(1)
    assert 0 < found.median < 1


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = train_tiny_run(tmp_path_factory.mktemp("alignment") / "run")
    certify_run(folder, eps=("1/4",), limit=20)
    return folder


def test_the_certificate_and_the_report_say_it(certified: Path) -> None:
    run = read_evidence(certified)
    told = run.certificate.alignment
    assert told is not None
    assert told.images == 20
    assert len(told.layers) == len(run.certificate.layers)
    assert json.loads(json_summary(run))["alignment"] == told.median
    assert f"{100 * told.median:.1f}" in markdown_summary(run)
    verify_run(certified)


@pytest.mark.parametrize("change", [{"median": 0.999}, {"images": 19}, {"layers": []}])
def test_another_alignment_is_refused(certified: Path, tmp_path: Path, change: dict[str, object]) -> None:
    copy = shutil.copytree(certified, tmp_path / "run")
    told = json.loads((copy / "certificate.json").read_text())["alignment"]
    edit_certificate(copy / "certificate.json", alignment={**told, **change})
    with pytest.raises(BronetError, match="alignment differs"):
        verify_run(copy)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "share", "layer"),
    [("bronet-s-fast/cifar10", 0.61, "stem.linear"), ("lipconvnet-10-32/cifar10", 0.54, "stages.0.0.linear")],
)
def test_networks_for_cifar_lose_most_in_their_first_layer(name: str, share: float, layer: str) -> None:
    network = prove(load_pretrained(name))
    found = alignment(network, load_dataset("cifar10", "sample"))
    assert found.median == pytest.approx(share, abs=0.03)
    shares = {path: part for (path, _), part in zip(network.layers, found.layers, strict=True) if part is not None}
    assert min(shares, key=lambda path: shares[path]) == layer
