"""CIFAR from the binary version: the layout is read right, and a wrong file is named."""

import hashlib
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from bronet.data import load_dataset
from bronet.data.official import LAYOUTS
from bronet.errors import BronetError

RECORDS = 10_000
PIXELS = 3 * 32 * 32


def _table(name: str) -> NDArray[np.uint8]:
    """Test records of a made-up set: balanced labels, and pixels that tell their channel, row and column."""
    layout = LAYOUTS[name]
    table = np.zeros((RECORDS, layout.label_bytes + PIXELS), dtype=np.uint8)
    table[:, layout.label_bytes - 1] = np.arange(RECORDS) % len(layout.classes)
    channel, row, column = np.meshgrid(np.arange(3), np.arange(32), np.arange(32), indexing="ij")
    table[:, layout.label_bytes :] = (64 * channel + row + column).astype(np.uint8).reshape(-1)
    if layout.label_bytes == 2:
        table[:, 0] = 19  # the coarse label, which must not be taken for the fine one
    return table


def _write(name: str, data_dir: Path, table: NDArray[np.uint8]) -> Path:
    layout = LAYOUTS[name]
    path = data_dir / layout.folder / layout.files["test"][0]
    path.parent.mkdir(parents=True)
    table.tofile(path)
    return path


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_records_are_read_channel_first_after_the_fine_label(name: str, tmp_path: Path) -> None:
    _write(name, tmp_path, _table(name))
    images = load_dataset(name, "test", data_dir=tmp_path)
    assert images.images.shape == (RECORDS, 3, 32, 32)
    if name == "cifar10":
        assert images.labels[:3].tolist() == [0, 1, 2]
    assert int(images.labels.max()) == len(images.classes) - 1
    assert int(images.images[7, 2, 5, 9]) == 64 * 2 + 5 + 9
    assert images.scale == 255


def test_an_image_of_cifar100_has_the_same_number_in_every_copy(tmp_path: Path) -> None:
    table = _table("cifar100")
    table[:, 2:] = np.random.default_rng(0).integers(0, 256, (RECORDS, PIXELS))
    _write("cifar100", tmp_path / "one", table)
    _write("cifar100", tmp_path / "other", table[::-1])
    one, other = (load_dataset("cifar100", "test", data_dir=tmp_path / copy) for copy in ("one", "other"))
    assert torch.equal(one.images, other.images)
    assert torch.equal(one.labels, other.labels)
    first = min(table, key=lambda record: hashlib.sha256(record).digest())
    assert int(one.labels[0]) == first[1]


def test_the_class_names_are_the_official_ones() -> None:
    assert LAYOUTS["cifar10"].classes[3] == "cat"
    fine = LAYOUTS["cifar100"].classes
    assert len(set(fine)) == 100
    assert list(fine) == sorted(fine)


def test_a_truncated_file_is_named_with_its_size(tmp_path: Path) -> None:
    path = _write("cifar10", tmp_path, _table("cifar10")[:-1])
    with pytest.raises(BronetError, match=rf"{path} must have 30730000 bytes, got 30726927"):
        load_dataset("cifar10", "test", data_dir=tmp_path)


def test_a_missing_file_of_the_folder_is_named(tmp_path: Path) -> None:
    _write("cifar10", tmp_path, _table("cifar10"))
    with pytest.raises(BronetError, match=r"data_batch_1.bin must have 30730000 bytes, got no file"):
        load_dataset("cifar10", "train", data_dir=tmp_path)


def test_a_label_out_of_range_is_named(tmp_path: Path) -> None:
    table = _table("cifar10")
    table[17, 0] = 10
    _write("cifar10", tmp_path, table)
    with pytest.raises(BronetError, match=r"labels of cifar10 must satisfy 0 <= label < 10, got 10"):
        load_dataset("cifar10", "test", data_dir=tmp_path)


def test_an_unbalanced_set_is_named(tmp_path: Path) -> None:
    table = _table("cifar10")
    table[table[:, 0] == 3, 0] = 5
    _write("cifar10", tmp_path, table)
    with pytest.raises(BronetError, match="must be 1000 per class, got 0 of class cat"):
        load_dataset("cifar10", "test", data_dir=tmp_path)


def test_foreign_class_names_are_refused_and_the_official_ones_accepted(tmp_path: Path) -> None:
    path = _write("cifar10", tmp_path, _table("cifar10"))
    names = path.parent / LAYOUTS["cifar10"].names_file
    names.write_text("\n".join(LAYOUTS["cifar10"].classes) + "\n\n")
    assert load_dataset("cifar10", "test", data_dir=tmp_path).classes == LAYOUTS["cifar10"].classes
    names.write_text("zero\none\n")
    with pytest.raises(BronetError, match=r"batches.meta.txt must name the 10 official classes"):
        load_dataset("cifar10", "test", data_dir=tmp_path)


def test_missing_data_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(BronetError) as caught:
        load_dataset("cifar100", "test", data_dir=tmp_path / "nowhere")
    message = str(caught.value)
    assert "\n" not in message
    for needed in ("nowhere", "cifar-100-binary.tar.gz", "https://www.cs.toronto.edu/~kriz/", "--data-dir"):
        assert needed in message


def test_the_folder_of_the_environment_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write("cifar10", tmp_path, _table("cifar10"))
    monkeypatch.setenv("BRONET_DATA", str(tmp_path))
    assert len(load_dataset("cifar10", "test")) == RECORDS


def test_an_archive_is_checked_then_unpacked_then_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = LAYOUTS["cifar10"]
    source = _write("cifar10", tmp_path / "source", _table("cifar10"))
    archive = tmp_path / layout.archive
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(source.parent, arcname=layout.folder)
    with pytest.raises(BronetError, match=f"must have MD5 {layout.md5}"):
        load_dataset("cifar10", "test", data_dir=tmp_path)
    found = hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest()
    monkeypatch.setitem(LAYOUTS, "cifar10", replace(layout, md5=found))
    assert len(load_dataset("cifar10", "test", data_dir=tmp_path)) == RECORDS
    assert (tmp_path / layout.folder / "test_batch.bin").is_file()


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_real_set_loads_whole(name: str) -> None:
    data_dir = Path(os.environ.get("BRONET_DATA", ""))
    if "BRONET_DATA" not in os.environ or not (data_dir / LAYOUTS[name].folder).is_dir():
        pytest.skip(f"BRONET_DATA names no folder with {LAYOUTS[name].folder}")
    train, test = load_dataset(name, "train"), load_dataset(name, "test")
    assert (len(train), len(test)) == (50_000, 10_000)
    if name == "cifar10":
        # The channel means that everyone normalises CIFAR-10 with, here to four decimals.
        mean = train.images.sum((0, 2, 3)).double() / (len(train) * 32 * 32 * train.scale)
        torch.testing.assert_close(mean, torch.tensor([0.4914, 0.4822, 0.4465]).double(), atol=5e-5, rtol=0)
