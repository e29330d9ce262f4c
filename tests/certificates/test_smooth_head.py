"""Networks whose head bends (CRC) are certified, verified, exported and attacked as any other, or clearly refused."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from bronet import BronetError
from bronet.certificates.execution import execute_run
from bronet.certificates.run import certify_run
from bronet.certificates.verify import verify_run
from bronet.data import load_dataset
from bronet.export import export_run
from bronet.graph.network import prove
from bronet.models import build_model
from bronet.recipe import dataset_spec, override, to_text
from bronet.run.certificate import file_hash, read_certificate_rows
from bronet.run.folder import open_run
from bronet.run.weights import load_model, save_weights
from certificates import edit_certificate
from lab.recipes import table_recipe

IMAGES = 12
VERIFIER = Path(__file__).parents[2] / "verifier" / "verifier.py"
SMALL = ["model.depth=5", "model.width=2"]
RECIPES = ["cifar10/lipconvnet-10-32-crc", "cifar10/soc-20-crc"]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", params=RECIPES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest network of a recipe of the tables, with random weights, certified on images of the sample."""
    recipe = override(table_recipe(request.param), SMALL)
    folder = tmp_path_factory.mktemp("crc") / "run"
    folder.mkdir()
    model = build_model(recipe.model, dataset_spec("cifar10"), seed=1)
    with torch.no_grad():
        model.head.bias.normal_(std=0.01, generator=torch.Generator().manual_seed(0))
    save_weights(folder / "model.safetensors", model.state_dict(), recipe=recipe)
    (folder / "recipe.yaml").write_text(to_text(recipe), encoding="utf-8")
    certify_run(folder, split="sample", limit=IMAGES)
    return folder


def test_a_certificate_is_confirmed_and_larger_than_constants_allow(run: Path) -> None:
    rows = read_certificate_rows(run / "certificate-sample.csv")
    assert all(row.radius > 0 for row in rows)
    assert sum(row.radius > row.naive_radius for row in rows) > IMAGES / 2  # which knows the constants alone
    verify_run(run / "certificate-sample.json")


def test_a_radius_above_the_proof_is_refused(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    path = copy / "certificate-sample.csv"
    header, first, *lines = path.read_text().splitlines()
    cells = first.split(",")
    cells[5] = repr(float(cells[5]) * (1 + 1e-5))
    path.write_text("\n".join([header, ",".join(cells), *lines]) + "\n")
    edit_certificate(copy / "certificate-sample.json", rows_sha256=file_hash(path))
    with pytest.raises(BronetError, match="radius of image 0 differs"):
        verify_run(copy / "certificate-sample.json")


@pytest.mark.parametrize("run", [RECIPES[0], pytest.param(RECIPES[1], marks=pytest.mark.slow)], indirect=True)
def test_the_exported_program_keeps_the_classes(run: Path) -> None:
    network = prove(load_model(open_run(run)))
    images = load_dataset("cifar10", "sample").pixels(torch.arange(IMAGES), dtype=torch.float64)
    path = export_run(run, proved=True).path
    session = onnxruntime.InferenceSession(path)
    (logits,) = session.run(["logits"], {"images": images.numpy()})
    np.testing.assert_allclose(logits, network.logits(images).numpy(), rtol=0, atol=1e-9)
    assert not {"Softplus", "Tanh", "Exp", "Conv"} & {node.op_type for node in onnx.load(path).graph.node}


def test_radii_in_float32_are_proved_too(run: Path) -> None:
    done = execute_run(run, "float32", split="sample")
    assert done.surviving is not None
    assert 0 <= done.surviving <= done.radii <= IMAGES


def test_the_second_verifier_refuses_what_it_does_not_know(run: Path, tmp_path: Path) -> None:
    sample = load_dataset("cifar10", "sample").subset(torch.arange(IMAGES))
    np.savez(tmp_path / "images.npz", images=sample.images.numpy(), labels=sample.labels.numpy())
    files = [run / name for name in ("model.safetensors", "recipe.yaml", "certificate-sample.csv")]
    words = [sys.executable, VERIFIER, *files, "--images", tmp_path / "images.npz"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "head" in done.stderr or "backbone" in done.stderr
    assert done.stderr.count("\n") == 1
