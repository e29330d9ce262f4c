"""Data sets in folders and archives: the true layouts, small; what is wrong is named, nothing is half-unpacked."""

import hashlib
import io
import os
import struct
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bronet.data import FileSet, ImageSet, folder, load_dataset, load_images, open_images, open_synthetic
from bronet.data import official as official_sets
from bronet.data.decode import decode_centre, decode_whole
from bronet.errors import BronetError
from bronet.recipe import DataRecipe, dataset_spec
from generated_images import class_folders, encoded, pixels, tiny_imagenet

PETS = ["ant", "bee", "cat"]
OWN = DataRecipe(name="pets", channels=3, height=64, width=64, classes=3)


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("data") / "tiny-imagenet-200"
    return folder, tiny_imagenet(folder)


@pytest.fixture
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(official_sets, "TINY_IMAGES", {"train": 200, "test": 200})


@pytest.mark.usefixtures("few_images")
@pytest.mark.parametrize("split", ["train", "test"])
def test_tiny_imagenet_is_read_in_its_official_layout(official: tuple[Path, list[str]], split: str) -> None:
    folder, names = official
    found = load_dataset("tiny-imagenet", split, data_dir=folder.parent)
    assert (found.classes, found.images.shape) == (tuple(names), (200, 3, 64, 64))
    for label in (0, 77, 199):  # picture number `label` belongs to class number `label`
        (position,) = torch.nonzero(found.labels == label).flatten().tolist()
        difference = np.abs(found.images[position].numpy().astype(int) - pixels(label).astype(int))
        assert difference.mean() < 4  # JPEG


def test_an_incomplete_tiny_imagenet_is_named(official: tuple[Path, list[str]]) -> None:
    with pytest.raises(BronetError, match="must hold 100000 train images, got 200"):
        load_dataset("tiny-imagenet", "train", data_dir=official[0].parent)


@pytest.mark.usefixtures("few_images")
def test_the_zip_of_tiny_imagenet_is_checked_then_unpacked_whole(
    official: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(archive, "w") as content:
        for path in sorted(official[0].rglob("*")):
            content.write(path, path.relative_to(official[0].parent))
    with pytest.raises(BronetError, match="must have MD5 90528d7ca1a48142e341f4ef8d21d0de, got"):
        load_dataset("tiny-imagenet", "test", data_dir=tmp_path)
    assert not (tmp_path / "tiny-imagenet-200").exists()
    md5 = hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest()
    monkeypatch.setattr(official_sets, "TINY_IMAGENET", replace(official_sets.TINY_IMAGENET, md5=md5))
    assert len(load_dataset("tiny-imagenet", "test", data_dir=tmp_path)) == 200
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["tiny-imagenet-200", "tiny-imagenet-200.zip"]


def test_a_damaged_zip_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(archive, "w") as content:
        content.writestr("tiny-imagenet-200/wnids.txt", "a\n" * 999)
    damaged = bytearray(archive.read_bytes())
    damaged[60:80] = b"\0" * 20
    archive.write_bytes(bytes(damaged))
    md5 = hashlib.md5(bytes(damaged), usedforsecurity=False).hexdigest()
    monkeypatch.setattr(official_sets, "TINY_IMAGENET", replace(official_sets.TINY_IMAGENET, md5=md5))
    with pytest.raises(BronetError, match=r"cannot unpack .*zip"):
        load_dataset("tiny-imagenet", "test", data_dir=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny-imagenet-200.zip"]


def test_a_folder_of_class_folders_is_a_data_set(tmp_path: Path) -> None:
    class_folders(tmp_path / "pets" / "train", PETS, 3)
    class_folders(tmp_path / "pets" / "val", PETS, 1)
    train, test = (load_images(OWN, split, data_dir=tmp_path) for split in ("train", "test"))
    assert train.classes == test.classes == tuple(PETS)
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert np.array_equal(train.images[4].numpy(), pixels(101))
    assert len(load_images(OWN, "train", data_dir=tmp_path, limit=2)) == 2


def test_test_images_of_other_classes_than_the_training_images_are_refused(tmp_path: Path) -> None:
    """Folders are sorted by name, so a class of another name would give its images the label of another class."""
    class_folders(tmp_path / "pets" / "train", PETS, 1)
    class_folders(tmp_path / "pets" / "test", ["bee", "cat", "zebra"], 1)
    with pytest.raises(BronetError, match="must be named like the classes or numbered from 0, got zebra"):
        load_images(OWN, "test", data_dir=tmp_path)


def test_imagenet_is_files_of_any_size_resized_when_read(tmp_path: Path) -> None:
    names = [f"n{number:08d}" for number in range(1000)]
    class_folders(tmp_path / "imagenet" / "val", names, 1, "JPEG", (40, 30))
    data = DataRecipe(name="imagenet", resize=(224, 288))
    files = open_images(data, "test", data_dir=tmp_path)
    assert isinstance(files, FileSet)
    assert (len(files), files.classes[7]) == (1000, names[7])
    assert load_images(data, "test", data_dir=tmp_path, limit=3).images.shape == (3, 3, 224, 224)


def test_what_is_wrong_with_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(BronetError, match="no such folder; name another place"):
        open_images(OWN, "train", data_dir=tmp_path)
    (tmp_path / "pets").mkdir()
    with pytest.raises(BronetError, match=r"must hold train/ or train\*\.parquet with the train images"):
        open_images(OWN, "train", data_dir=tmp_path)
    class_folders(tmp_path / "pets" / "train", PETS[:2], 1)
    with pytest.raises(BronetError, match="must hold 3 class folders, got 2"):
        open_images(OWN, "train", data_dir=tmp_path)
    (tmp_path / "pets" / "train" / "cat").mkdir()
    with pytest.raises(BronetError, match="cat must hold images, got none"):
        open_images(OWN, "train", data_dir=tmp_path)
    wrong = tmp_path / "pets" / "train" / "cat" / "cat.png"
    wrong.write_bytes(encoded(5, width=32, height=48))
    with pytest.raises(BronetError, match=r"cat\.png must have 64 x 64 pixels, got 32 x 48; set data\.resize"):
        open_images(OWN, "train", data_dir=tmp_path)
    wrong.write_bytes(encoded(5)[:60])
    with pytest.raises(BronetError, match=r"cannot decode image .*cat\.png"):
        open_images(OWN, "train", data_dir=tmp_path)


def write_npz(path: Path, count: int, **changes: object) -> np.ndarray:
    images = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    arrays = {"image": images, "label": np.arange(count) % 10} | changes
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})  # type: ignore[arg-type]
    return images


CLASSES = tuple("0123456789")


def test_generated_images_of_an_npz_file_are_read_in_pieces(tmp_path: Path) -> None:
    images = write_npz(tmp_path / "edm.npz", 5000)  # more than one piece
    data = DataRecipe(name="cifar10", synthetic="edm.npz", synthetic_batch=8)
    found = open_synthetic(data, CLASSES, data_dir=tmp_path)
    assert isinstance(found, ImageSet)
    assert np.array_equal(found.images.numpy(), images.transpose(0, 3, 1, 2))
    assert found.labels[:12].tolist() == [*range(10), 0, 1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image": np.zeros((4, 28, 28, 3), np.uint8)}, r"shape \(n, \(32, 32, 3\)\), got uint8 of shape \(4, 28"),
        ({"image": np.zeros((4, 32, 32, 3), np.float32)}, "must be uint8"),
        ({"image": None, "pictures": np.zeros(3)}, "must hold arrays named 'image' and 'label', got"),
        ({"label": np.zeros(3, np.int64)}, "must be 4 whole numbers"),
        ({"label": np.array([None] * 4)}, r"must be plain \.npy arrays"),
        ({"label": np.full(4, 10)}, "0 <= label < 10, got 10"),
    ],
)
def test_a_wrong_npz_file_is_named(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    write_npz(tmp_path / "edm.npz", 4, **changes)
    data = DataRecipe(name="cifar10", synthetic="edm.npz", synthetic_batch=8)
    with pytest.raises(BronetError, match=words):
        open_synthetic(data, CLASSES, data_dir=tmp_path)


def _relabelled_npz(path: Path, header: str) -> None:
    """Write an .npz whose image array claims a shape of its own, with the bytes of four images."""
    write_npz(path, 4)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {header}, }}".ljust(117) + "\n"
    members["image.npy"] = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + bytes(4 * 3072)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


@pytest.mark.parametrize("count", ["1000000000000000", "-1", "True", "9" * 23])
def test_an_npz_file_that_claims_more_than_it_holds_is_named(tmp_path: Path, count: str) -> None:
    _relabelled_npz(tmp_path / "edm.npz", f"({count}, 32, 32, 3)")
    data = DataRecipe(name="cifar10", synthetic="edm.npz", synthetic_batch=8)
    with pytest.raises(BronetError, match=r"must be plain \.npy arrays"):
        open_synthetic(data, CLASSES, data_dir=tmp_path)


def test_images_of_sixteen_bits_keep_their_greys() -> None:
    """Pillow's own conversion cuts at 255, which makes nearly all of such an image white."""
    deep = np.linspace(0, 65535, 1024).reshape(32, 32).astype(np.uint16)
    spec = replace(dataset_spec("cifar10"), channels=1)
    for kind in ("PNG", "TIFF"):
        file = io.BytesIO()
        Image.fromarray(deep).save(file, kind)
        assert np.array_equal(decode_whole(file.getvalue(), spec).numpy()[0], deep >> 8)
    file = io.BytesIO()
    Image.fromarray(deep.astype(np.float32)).save(file, "TIFF")
    with pytest.raises(BronetError, match="whole numbers of 8 or 16 bits, got floating point"):
        decode_whole(file.getvalue(), spec)


def test_an_image_far_longer_than_high_is_refused(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("RGB", (20_000, 2)).save(file, "PNG")
    with pytest.raises(BronetError, match=r"at most 100 times the other, got \(20000, 2\)"):
        decode_centre(file.getvalue(), dataset_spec("cifar10"))
    path = tmp_path / "long.png"
    path.write_bytes(file.getvalue())
    with pytest.raises(BronetError, match=r"long\.png .*got \(20000, 2\)"):
        decode_centre(path, dataset_spec("cifar10"))


def test_a_pipe_that_is_named_like_an_image_is_refused_by_its_name(tmp_path: Path) -> None:
    """Reading it would wait for ever."""
    class_folders(tmp_path / "pets" / "train", ["ant", "bee"], 1)
    os.mkfifo(tmp_path / "pets" / "train" / "bee" / "x.png")
    data = DataRecipe(name="pets", channels=3, height=64, width=64, classes=2)
    with pytest.raises(BronetError, match=r"bee/x\.png must be a file"):
        load_images(data, "train", data_dir=tmp_path)
    with pytest.raises(BronetError, match=r"bee/x\.png must be a file"):
        folder(tmp_path / "pets" / "train")


def test_what_is_no_image_is_told_so_with_its_name(tmp_path: Path) -> None:
    class_folders(tmp_path / "pets" / "train", ["ant", "bee"], 1)
    (tmp_path / "pets" / "train" / "bee" / "x.png").write_bytes(b"no image")
    data = DataRecipe(name="pets", channels=3, height=64, width=64, classes=2)
    with pytest.raises(BronetError, match=r"cannot decode image .*bee/x\.png \(no image of a known format\)"):
        load_images(data, "train", data_dir=tmp_path)
    with pytest.raises(BronetError, match=r"cannot decode image .*bee/x\.png \(no image of a known format\)"):
        folder(tmp_path / "pets" / "train")


def test_a_missing_or_cut_npz_file_is_named(tmp_path: Path) -> None:
    data = DataRecipe(name="cifar10", synthetic="edm.npz", synthetic_batch=8)
    with pytest.raises(BronetError, match="there is no such file"):
        open_synthetic(data, CLASSES, data_dir=tmp_path)
    write_npz(tmp_path / "edm.npz", 4)
    (tmp_path / "edm.npz").write_bytes((tmp_path / "edm.npz").read_bytes()[:3000])
    with pytest.raises(BronetError, match="damaged or cut short"):
        open_synthetic(data, CLASSES, data_dir=tmp_path)


def test_generated_class_folders_may_be_numbered(tmp_path: Path) -> None:
    class_folders(tmp_path / "edm2", ["00000", "00001", "00002"], 2)
    data = DataRecipe(**{**vars(OWN), "synthetic": "edm2", "synthetic_batch": 4})
    found = open_synthetic(data, ("ant", "bee", "cat"), data_dir=tmp_path)
    assert (found.classes, found.labels.tolist()) == (("ant", "bee", "cat"), [0, 0, 1, 1, 2, 2])
    (tmp_path / "edm2" / "00000").rename(tmp_path / "edm2" / "dog")
    with pytest.raises(BronetError, match="named like the classes or numbered from 0, got 00001"):
        open_synthetic(data, ("ant", "bee", "cat"), data_dir=tmp_path)
