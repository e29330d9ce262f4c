"""Local parquet files in the layout of the hub: decoded in memory, or unpacked into class folders."""

import json
from pathlib import Path

import numpy as np
import pytest

from bronet.data import load_images, open_images
from bronet.data.parquet import encoded_images, parquet_files, unpack_parquet
from bronet.errors import BronetError
from bronet.recipe import DataRecipe
from generated_images import encoded, pixels

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

OWN = DataRecipe(name="pets", channels=3, height=64, width=64, classes=3)


def write(path: Path, labels: list[int], *, names: list[str] | None = None, image: str = "image") -> None:
    """Write one parquet file; the picture of a row has its label as seed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"bytes": encoded(abs(label)), "path": None} for label in labels]
    table = pyarrow.table({image: rows, "label": pyarrow.array(labels, pyarrow.int64())})
    if names is not None:
        features = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    parquet.write_table(table, path)


def test_parquet_files_are_a_data_set(tmp_path: Path) -> None:
    write(tmp_path / "pets" / "data" / "train-00000-of-00002.parquet", [2, 0], names=["ant", "bee", "cat"])
    write(tmp_path / "pets" / "data" / "train-00001-of-00002.parquet", [1], names=["ant", "bee", "cat"])
    write(tmp_path / "pets" / "data" / "validation-00000-of-00001.parquet", [1])
    train, test = (load_images(OWN, split, data_dir=tmp_path) for split in ("train", "test"))
    assert (train.classes, train.labels.tolist()) == (("ant", "bee", "cat"), [2, 0, 1])
    assert (test.classes, test.labels.tolist()) == (("0", "1", "2"), [1])
    assert np.array_equal(train.images[0].numpy(), pixels(2))


def test_large_parquet_sets_are_unpacked_into_class_folders_once(tmp_path: Path) -> None:
    root = tmp_path / "pets"
    write(root / "train-0.parquet", [2, 0, 1, 2])
    large = DataRecipe(**{**vars(OWN), "resize": (64, 80)})
    with pytest.raises(BronetError, match=r"unpack them once with: bronet data unpack .*pets --split train"):
        open_images(large, "train", data_dir=tmp_path)
    assert unpack_parquet(parquet_files(root, "train"), root / "train") == 4
    files = open_images(large, "train", data_dir=tmp_path)
    assert (len(files), sorted(files.labels.tolist())) == (4, [0, 1, 2, 2])
    with pytest.raises(BronetError, match="must not exist yet"):
        unpack_parquet(parquet_files(root, "train"), root / "train")


def test_wrong_parquet_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    path.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(BronetError, match=r"cannot read .*train\.parquet"):
        list(encoded_images([path]))
    write(path, [0], image="picture")
    with pytest.raises(BronetError, match="must have columns image and label, got picture, label"):
        list(encoded_images([path]))
    write(path, [-1])
    with pytest.raises(BronetError, match="whole numbers from 0, got -1"):
        list(encoded_images([path]))
