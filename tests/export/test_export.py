"""An exported file is the float32 network, runs without bronet, and carries what a radius needs."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from bronet import BronetError, build_model, prove
from bronet.certificates.run import certify_run
from bronet.cli import app
from bronet.data import load_dataset
from bronet.export import Format, export_model
from bronet.export.program import frozen_program, onnx_runner
from bronet.layers import CONVOLUTIONS, Flatten, LastLayerNormalized, LipschitzLayer, frozen
from bronet.models import CertifiableModel
from bronet.proof.proved_map import ProvedMap, exact
from bronet.recipe.architecture import Architecture, BRONetArchitecture, LipConvNetArchitecture, StackArchitecture
from bronet.recipe.schema import DatasetSpec
from bronet.run.folder import open_run
from bronet.run.weights import load_model
from tiny_run import train_tiny_run

PAGE = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")
ROUNDING = 1e-5
PLAIN = {"MatMul", "Gemm", "Conv", "Add", "Sub", "Mul", "Div", "Max", "Min", "Relu", "ReduceL2", "ReduceSum", "Clip"}
MOVES = {"Transpose", "Reshape", "Split", "Concat", "Slice", "Pad", "Shape", "ConstantOfShape", "Gather", "Unsqueeze"}
TINY = DatasetSpec("tiny", 1, 8, 8, 3, 255)
SMALL = DatasetSpec("small", 1, 32, 32, 3, 255)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `runs/quickstart` is a certified run, exported in both formats, as the page says."""
    home = tmp_path_factory.mktemp("export")
    run = train_tiny_run(home / "runs" / "quickstart")
    certify_run(run, limit=60)
    for name in Format:
        done = CliRunner().invoke(app, ["export", str(run), "--format", name.value])
        assert done.exit_code == 0, done.output
        assert "from the float32 network, over 16 random images" in done.output
    return home


def of_run(home: Path) -> CertifiableModel:
    run = open_run(home / "runs" / "quickstart")
    return load_model(run)


@torch.no_grad()
def test_the_onnx_file_gives_the_float32_logits_for_any_batch(folder: Path) -> None:
    run, model = onnx_runner(folder / "runs" / "quickstart" / "model.onnx"), of_run(folder)
    digits = load_dataset("digits", "test")
    for count in (1, 2, 33):
        images = digits.pixels(torch.arange(count))
        torch.testing.assert_close(run(images), model(images), rtol=0, atol=ROUNDING)


@torch.no_grad()
def test_the_torch_file_gives_the_float32_logits_and_holds_the_same_facts(folder: Path) -> None:
    inside = {"bronet.json": ""}
    path = folder / "runs" / "quickstart" / "model.pt2"
    program = torch.export.load(path, extra_files=inside).module()
    images = load_dataset("digits", "test").pixels(torch.arange(33))
    torch.testing.assert_close(program(images), of_run(folder)(images), rtol=0, atol=ROUNDING)
    session = onnxruntime.InferenceSession(path.with_suffix(".onnx"))
    facts = session.get_modelmeta().custom_metadata_map
    assert {key: json.loads(value) for key, value in facts.items()} == json.loads(inside["bronet.json"])


def test_metadata_holds_bounds_of_the_proved_network(folder: Path) -> None:
    run = folder / "runs" / "quickstart"
    session = onnxruntime.InferenceSession(run / "model.onnx")
    facts = {key: json.loads(value) for key, value in session.get_modelmeta().custom_metadata_map.items()}
    network, certificate = prove(of_run(folder)), json.loads((run / "certificate.json").read_text())
    assert (np.array(facts["gap_lipschitz"]) >= (network.gaps * network.lipschitz).numpy()).all()
    assert facts["lipschitz"] == certificate["lipschitz"]
    assert facts["classes"] == certificate["classes"]
    assert facts["weights_sha256"] == certificate["weights_sha256"]
    assert facts["image_shape"] == [1, 8, 8]
    assert session.get_inputs()[0].shape == ["batch", 1, 8, 8]


def test_the_page_computes_the_radius_with_numpy_and_onnxruntime_alone(folder: Path) -> None:
    """The radius of the page, on every certified image, is the proved one up to the rounding of float32 logits."""
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    images = load_dataset("digits", "test").pixels(torch.arange(60)).numpy()
    np.save(folder / "images.npy", images)
    ours = (
        '(logits,) = session.run(["logits"], {"images": np.load("images.npy")})\n'
        'np.save("radius.npy", radius(logits.astype(np.float64), gaps))\n'
    )
    blocked = 'import sys\nsys.modules["torch"] = sys.modules["bronet"] = None\n'
    words = [sys.executable, "-W", "error", "-c", blocked + code + ours]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with (folder / "runs" / "quickstart" / "certificate.csv").open(newline="") as file:
        proved = np.array([float(row["radius"]) for row in csv.DictReader(file)])
    assert (proved > 0).any()
    np.testing.assert_allclose(np.load(folder / "radius.npy"), proved, rtol=0, atol=10 * ROUNDING)


def test_the_graph_is_products_and_holds_no_path_of_this_machine(folder: Path) -> None:
    run = folder / "runs" / "quickstart"
    kinds = {node.op_type for node in onnx.load(run / "model.onnx").graph.node}
    assert "MatMul" in kinds
    assert kinds <= PLAIN | MOVES
    for name in ("model.onnx", "model.pt2"):
        content = (run / name).read_bytes()
        assert b"site-packages" not in content
        assert b"bronet/layers" not in content


LIPCONVNET = LipConvNetArchitecture(depth=5, width=4, head="bro", activation="householder1")
STACK = StackArchitecture(
    layer="sll", widths=(4, 4), kernels=(3, 3), strides=(1, 1), pool=4, dense_widths=(16,), activation="none"
)


def assert_same_logits(architecture: Architecture, spec: DatasetSpec) -> None:
    model = build_model(architecture, spec, seed=1).eval()
    program = frozen_program(model, spec.shape).module()
    images = torch.rand(5, *spec.shape, generator=torch.Generator().manual_seed(0))
    with frozen(model), torch.no_grad():
        torch.testing.assert_close(program(images), model(images), rtol=0, atol=ROUNDING)


@pytest.mark.parametrize(("architecture", "spec"), [(LIPCONVNET, SMALL), (STACK, TINY)], ids=["lipconvnet", "stack"])
def test_every_family_can_be_exported(architecture: Architecture, spec: DatasetSpec) -> None:
    assert_same_logits(architecture, spec)


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "spec"), [(LIPCONVNET, SMALL), (STACK, TINY)], ids=["lipconvnet", "stack"])
def test_every_family_runs_in_onnxruntime(architecture: Architecture, spec: DatasetSpec, tmp_path: Path) -> None:
    done = export_model(build_model(architecture, spec, seed=1), tmp_path / "model.onnx")
    assert done.from_float32 < ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(CONVOLUTIONS))
def test_every_kind_of_convolution_runs_in_onnxruntime(kind: str, tmp_path: Path) -> None:
    architecture = BRONetArchitecture(
        width=4,
        depth=2,
        dense_depth=1,
        dense_width=8,
        stem_kernel=3,
        stem_stride=1,
        stem_padding=1,
        rank="1/2",
        backbone=kind,  # type: ignore[arg-type]
    )
    done = export_model(build_model(architecture, TINY, seed=1), tmp_path / "model.onnx")
    assert done.from_float32 < ROUNDING


class One(CertifiableModel):
    """A model of one layer and a head."""

    def __init__(self, layer: LipschitzLayer) -> None:
        super().__init__((1, 4, 4))
        self.layer, self.flatten = layer, Flatten()
        self.head = LastLayerNormalized(16, 2)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.flatten(self.layer(images)))


class Identity(LipschitzLayer):
    """The identity, for layers that cannot be exported to differ from."""

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        return exact(lambda x: x, shape)

    def lipschitz_bound(self, input_size: tuple[int, int] | None = None) -> float:
        return 1.0


class Branching(Identity):
    proved = Identity.proved

    def forward(self, x: Tensor) -> Tensor:
        return x if float(x.sum()) > 0 else -x


class Remembering(Identity):
    calls, proved = 0, Identity.proved

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


def test_weights_too_large_for_one_file_lie_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bronet.export.program.LARGEST_SINGLE_FILE", 0)
    done = export_model(One(Flat()), tmp_path / "model.onnx", classes=["no", "yes"])
    data = tmp_path / f"model-{done.facts.weights_sha256[:12]}.data"
    assert sorted(tmp_path.iterdir()) == sorted([data, done.path])
    assert done.facts.classes == ("no", "yes")
    assert done.from_float32 < ROUNDING


class Flat(Identity):
    proved = Identity.proved

    def forward(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (Branching(), "forward must be traceable by torch.export, which says: "),
        (Remembering(), "they differ by .* so nothing was written"),
    ],
)
@pytest.mark.filterwarnings("ignore:The tensor attribute")
def test_what_cannot_be_exported_is_refused_in_one_line_and_leaves_nothing(
    layer: LipschitzLayer, message: str, tmp_path: Path
) -> None:
    with pytest.raises(BronetError, match=message) as caught:
        export_model(One(layer), tmp_path / "model.pt2", format=Format.TORCH)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_wrong_requests_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BronetError, match=r"of format torch-export must end in .pt2, got .*model.onnx"):
        export_model(One(Flat()), tmp_path / "model.onnx", format=Format.TORCH)
    with pytest.raises(BronetError, match="classes must name all 2 outputs of the model, got 3 names"):
        export_model(One(Flat()), tmp_path / "model.onnx", classes=["a", "b", "c"])
    monkeypatch.setattr("bronet.export.program._NEEDED", ("no_such_package",))
    with pytest.raises(BronetError, match=r"needs the package no_such_package; .* pip install 'bronet\[onnx\]'"):
        export_model(One(Flat()), tmp_path / "model.onnx")
