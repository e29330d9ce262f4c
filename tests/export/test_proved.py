"""The exported program of a proof: its operations, its numbers, named by the certificate, in any runtime."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor

from bronet import BronetError, prove
from bronet.attack.judge import judge
from bronet.attack.search import autoattack
from bronet.certificates.run import certify_run
from bronet.certificates.verify import verify_run
from bronet.data import ImageSet, load_images
from bronet.export import Format, export_run, verify_programs
from bronet.pretrained import find_network, unpack
from bronet.run.certificate import file_hash, read_certificate, read_certificate_rows
from bronet.run.folder import RunFolder, open_run
from bronet.run.weights import load_model
from certificates import edit_certificate
from tiny_run import train_tiny_run

PRODUCTS = {"MatMul", "Gemm", "Add", "Sub", "Mul", "Div", "Sqrt", "ReduceSum", "Max", "Min"}
MOVES = {"Transpose", "Reshape", "Split", "Concat", "Slice", "Pad", "Shape", "Gather", "Unsqueeze", "Range", "Squeeze"}
DIGITS = "bronet-digits/digits"

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = train_tiny_run(tmp_path_factory.mktemp("proved") / "run")
    certify_run(folder, limit=60)
    export_run(folder, proved=True)
    return folder


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    return shutil.copytree(exported, tmp_path / "run")


def images_of(run: RunFolder) -> ImageSet:
    return load_images(run.recipe.data, "test", limit=len(read_certificate_rows(run.certificate().rows)))


def assert_file_keeps_the_certificate(folder: Path, *, optimized: bool) -> None:
    """On all certified images: the class of the row, and every margin as large as the radius claims."""
    run, options = open_run(folder), onnxruntime.SessionOptions()
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(run.exported(Format.ONNX, proved=True), options)
    images, rows = images_of(run), read_certificate_rows(run.certificate().rows)
    pixels = images.pixels(torch.arange(len(images)), dtype=torch.float64)
    logits = session.run(["logits"], {"images": pixels.numpy()})[0]
    network = prove(load_model(run))
    prediction = [row.prediction for row in rows]
    assert logits.dtype == np.float64
    assert logits.argmax(axis=1).tolist() == prediction
    assert np.abs(logits - network.logits(pixels).numpy()).max() <= network.certify(pixels).rounding.max()
    gaps = network.gap_lipschitz.numpy()[prediction]
    margins = logits[np.arange(len(rows)), prediction][:, None] - logits
    margins[np.arange(len(rows)), prediction] = np.inf
    assert (margins >= gaps * np.array([row.radius for row in rows])[:, None]).all()


@pytest.mark.parametrize("optimized", [False, True])
def test_the_file_keeps_class_and_margin_of_every_certified_image(exported: Path, *, optimized: bool) -> None:
    assert_file_keeps_the_certificate(exported, optimized=optimized)


def test_the_file_is_made_of_operations_that_the_standard_model_covers(exported: Path) -> None:
    graph = onnx.load(open_run(exported).exported(Format.ONNX, proved=True)).graph
    assert {node.op_type for node in graph.node} <= PRODUCTS | MOVES
    assert graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.DOUBLE


def test_the_certificate_names_the_file_and_stays_true(exported: Path) -> None:
    run = open_run(exported)
    (program,) = read_certificate(run.certificate().facts).programs
    assert (program.name, program.sha256) == ("proved.onnx", file_hash(exported / "proved.onnx"))
    assert verify_run(exported).images == 60
    assert verify_programs(exported) == [exported / "proved.onnx"]


def test_another_file_is_refused_whatever_the_hash_says(copy: Path) -> None:
    path = copy / "proved.onnx"
    model = onnx.load(path)
    bias = next(tensor for tensor in model.graph.initializer if tensor.dims == [10])
    bias.raw_data = (np.frombuffer(bias.raw_data) + 1e-3).tobytes()
    onnx.save(model, path)
    with pytest.raises(BronetError, match=r"proved\.onnx differs"):
        verify_programs(copy)
    edit_certificate(copy / "certificate.json", programs=[{"name": path.name, "sha256": file_hash(path)}])
    with pytest.raises(BronetError, match=r"of proved\.onnx differs"):
        verify_programs(copy)
    edit_certificate(copy / "certificate.json", programs=[{"name": "../proved.onnx", "sha256": "ab"}])
    with pytest.raises(BronetError, match=r"beside the certificate, got \.\./proved\.onnx"):
        verify_programs(copy)


def test_a_network_without_a_certificate_has_no_proved_program(copy: Path) -> None:
    (copy / "certificate.json").unlink()
    with pytest.raises(BronetError, match="must have a certificate of its network"):
        export_run(copy, proved=True)


@pytest.mark.slow
def test_all_rows_of_the_packaged_digits_network_hold_in_onnxruntime(tmp_path: Path) -> None:
    run = unpack(find_network(DIGITS), tmp_path / "digits")
    assert len(certify_run(run).rows) == 500
    export_run(run, proved=True)
    assert_file_keeps_the_certificate(run.path, optimized=False)
    assert_file_keeps_the_certificate(run.path, optimized=True)


@pytest.mark.slow
def test_autoattack_through_the_file_breaks_no_radius(copy: Path) -> None:
    """It follows gradients through the file of torch.export; that of ONNX judges."""
    pytest.importorskip("pyautoattack")
    run = open_run(copy)
    program = torch.export.load(export_run(run, format=Format.TORCH, proved=True).path).module()
    session = onnxruntime.InferenceSession(copy / "proved.onnx")
    rows = [row for row in read_certificate_rows(run.certificate().rows) if row.correct and row.radius > 0][:2]
    images = images_of(run).pixels(torch.tensor([row.index for row in rows]), dtype=torch.float64)
    labels = torch.tensor([row.label for row in rows])

    def in_float32(pixels: Tensor) -> Tensor:
        return program(pixels.double()).float()

    def in_onnxruntime(pixels: Tensor) -> Tensor:
        return torch.from_numpy(session.run(["logits"], {"images": pixels.numpy()})[0])

    for row, image, label in zip(rows, images.split(1), labels.split(1), strict=True):
        found = autoattack(in_float32, image.float(), label, classes=10, norm="l2", eps=row.radius, seed=0)
        assert int(judge(in_onnxruntime, image, found, norm="l2", eps=row.radius).prediction) == row.prediction
    assert verify_programs(copy) == [copy / "proved.onnx", copy / "proved.pt2"]
