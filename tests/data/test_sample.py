"""The embedded sample is 500 test images of CIFAR-10, bit for bit."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bronet import BronetError
from bronet.data import data_folder, load_dataset
from bronet.data.load import IMAGES_FILE, ROWS_FILE, sample_rows
from bronet.data.official import LAYOUTS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "bronet" / "data"
PIXELS_SHA256 = "ab3d9ad82a1be321d9bc93f8c07dfcd22f2950fa9647fdef4edc043b4faddc05"
INDICES_SHA256 = "8704de650cb99684850e60b74f9c655fb7105b496197c9d1c5e7198f7ad08dae"
HERE = (data_folder(None) / LAYOUTS["cifar10"].folder).is_dir()
needs_cifar10 = pytest.mark.skipif(not HERE, reason="CIFAR-10 is not in the data folder (BRONET_DATA)")


def test_the_sample_holds_the_pixels_and_indices_it_was_made_with() -> None:
    sample = load_dataset("cifar10", "sample")
    assert (
        hashlib.sha256(sample.images.numpy().tobytes() + sample.labels.numpy().tobytes()).hexdigest() == PIXELS_SHA256
    )
    assert hashlib.sha256(str(tuple(sample_rows()[:, 0].tolist())).encode()).hexdigest() == INDICES_SHA256


def test_the_sample_has_fifty_images_of_each_class_in_test_order() -> None:
    sample = load_dataset("cifar10", "sample")
    assert torch.bincount(sample.labels).tolist() == [50] * 10
    indices = sample_rows()[:, 0].tolist()
    assert indices == sorted(set(indices))
    assert sample.images.shape == (500, 3, 32, 32)
    assert sample.classes == LAYOUTS["cifar10"].classes


def test_the_sample_says_whose_images_they_are() -> None:
    text = (PACKAGE / "CIFAR10-ATTRIBUTION.txt").read_text(encoding="utf-8")
    assert IMAGES_FILE in text
    assert "Krizhevsky" in text


@pytest.mark.parametrize("name", ["cifar100", "digits", "imagenet"])
def test_no_other_data_set_has_a_sample(name: str) -> None:
    with pytest.raises(BronetError, match="only cifar10 has an embedded sample"):
        load_dataset(name, "sample")


@needs_cifar10
def test_the_sample_equals_the_test_set_at_its_indices() -> None:
    sample, test = load_dataset("cifar10", "sample"), load_dataset("cifar10", "test")
    chosen = sample_rows()[:, 0]
    assert torch.equal(sample.images, test.images[chosen])
    assert torch.equal(sample.labels, test.labels[chosen])
    for label in range(10):
        assert torch.equal(chosen[sample.labels == label], (test.labels == label).nonzero()[:50, 0])


@needs_cifar10
def test_the_script_writes_the_same_sample(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "make_cifar10_sample.py"
    subprocess.run([sys.executable, str(script), "--out", str(tmp_path)], check=True, capture_output=True)
    for name in (IMAGES_FILE, ROWS_FILE):
        assert (tmp_path / name).read_bytes() == (PACKAGE / name).read_bytes()
