"""Local parquet files in the layout of the hub: decoded in memory, or unpacked into class folders."""

from pathlib import Path

import numpy as np
import pytest

from bronet.data import load_images, open_images
from bronet.data.columns import encoded_images, parquet_files, unpack_parquet
from bronet.errors import BronetError
from bronet.recipe import DataRecipe
from generated_images import encoded, pixels
from parquet_files import write_parquet

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

OWN = DataRecipe(name="pets", channels=3, height=64, width=64, classes=3)


def test_parquet_files_are_a_data_set(tmp_path: Path) -> None:
    write_parquet(tmp_path / "pets" / "data" / "train-00000-of-00002.parquet", [2, 0], names=["ant", "bee", "cat"])
    write_parquet(tmp_path / "pets" / "data" / "train-00001-of-00002.parquet", [1], names=["ant", "bee", "cat"])
    write_parquet(tmp_path / "pets" / "data" / "validation-00000-of-00001.parquet", [1])
    train, test = (load_images(OWN, split, data_dir=tmp_path) for split in ("train", "test"))
    assert (train.classes, train.labels.tolist()) == (("ant", "bee", "cat"), [2, 0, 1])
    assert (test.classes, test.labels.tolist()) == (("0", "1", "2"), [1])
    assert np.array_equal(train.images[0].numpy(), pixels(2))


def test_large_parquet_sets_are_unpacked_into_class_folders_once(tmp_path: Path) -> None:
    root = tmp_path / "pets"
    write_parquet(root / "train-0.parquet", [2, 0, 1, 2])
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
    write_parquet(path, [0], image="picture")
    with pytest.raises(BronetError, match="must have columns image and label, got picture, label"):
        list(encoded_images([path]))
    write_parquet(path, [-1])
    with pytest.raises(BronetError, match="whole numbers from 0, got -1"):
        list(encoded_images([path]))


def damage(path: Path) -> None:
    """Change the bytes of the pages and leave the description at the end of the file as it is."""
    content = bytearray(path.read_bytes())
    content[4:-1500] = bytes(len(content) - 1504)
    path.write_bytes(content)


def test_damaged_rows_are_named_with_their_file(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    write_parquet(path, list(range(300)))
    damage(path)
    with pytest.raises(BronetError, match=r"cannot read .*train\.parquet") as caught:
        list(encoded_images([path]))
    assert "\n" not in str(caught.value)


def test_checksums_find_a_single_changed_bit(tmp_path: Path) -> None:
    """Of labels, whose pages would still be read; without checksums in the file nobody could know."""
    path = tmp_path / "train.parquet"
    table = pyarrow.table({"image": [encoded(0)] * 40, "label": pyarrow.array(range(40), pyarrow.int64())})
    parquet.write_table(table, path, compression="none", use_dictionary=False, write_page_checksum=True)
    content = bytearray(path.read_bytes())
    content[content.index((20).to_bytes(8, "little"))] ^= 1
    path.write_bytes(content)
    with pytest.raises(BronetError, match=r"cannot read .*train\.parquet"):
        list(encoded_images([path]))


def test_an_attempt_that_failed_leaves_no_images_for_the_next_one(tmp_path: Path) -> None:
    root = tmp_path / "pets"
    write_parquet(root / "train-0.parquet", [2, 0])
    write_parquet(root / "train-1.parquet", [0, 1])
    damage(root / "train-1.parquet")
    with pytest.raises(BronetError, match=r"train-1\.parquet"):
        unpack_parquet(parquet_files(root, "train"), root / "train")
    assert sorted(path.name for path in root.iterdir()) == ["train-0.parquet", "train-1.parquet"]
    write_parquet(root / "train-0.parquet", [1])
    (root / "train-1.parquet").unlink()
    assert unpack_parquet(parquet_files(root, "train"), root / "train") == 1
    assert len([path for path in (root / "train").rglob("*") if path.is_file()]) == 1


def test_an_image_that_cannot_be_decoded_is_named_with_its_file_and_row(tmp_path: Path) -> None:
    path = tmp_path / "pets" / "train.parquet"
    path.parent.mkdir()
    images = [{"bytes": content, "path": None} for content in (encoded(0), encoded(1)[:100])]
    parquet.write_table(pyarrow.table({"image": images, "label": [0, 1]}), path)
    with pytest.raises(BronetError, match=r"pets/train\.parquet, row 2: cannot decode"):
        load_images(OWN, "train", data_dir=tmp_path)
