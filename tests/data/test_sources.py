"""Images from tensors, data sets and loaders: the same pixels and labels, whatever they come in."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset

import bronet
from bronet import BronetError
from bronet.data import batches_of, load_dataset
from generated_images import class_folders

DIGITS = load_dataset("digits", "test").subset(torch.arange(10))
PIXELS = DIGITS.images.double() / DIGITS.scale


class OfDictionaries(Dataset[dict[str, Any]]):
    """Items as the hub's data sets give them."""

    def __len__(self) -> int:
        return len(DIGITS)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": PIXELS[index], "label": int(DIGITS.labels[index])}


@pytest.mark.parametrize(
    "source",
    [
        DIGITS,
        TensorDataset(PIXELS, DIGITS.labels),
        OfDictionaries(),
        DataLoader(DIGITS, batch_size=3),
        DataLoader(OfDictionaries(), batch_size=4),
        [(PIXELS[:6], DIGITS.labels[:6]), (PIXELS[6:], DIGITS.labels[6:])],
    ],
    ids=["image set", "tensors", "dictionaries", "loader", "loader of dictionaries", "batches"],
)
def test_every_source_gives_the_same_pixels_and_labels(source: Any) -> None:
    pixels, labels = zip(*batches_of(source, batch_size=4), strict=True)
    torch.testing.assert_close(torch.cat(pixels).double(), PIXELS, rtol=0, atol=1e-7)
    assert torch.equal(torch.cat(labels), DIGITS.labels)


@pytest.mark.parametrize("made", [torch.as_tensor, np.asarray], ids=["tensor", "array"])
def test_bytes_are_divided_by_255_and_a_tensor_has_no_labels(made: Callable[[Any], Any]) -> None:
    stored = torch.arange(12, dtype=torch.uint8).view(3, 1, 2, 2)
    (first, none), (second, _) = batches_of(made(stored), batch_size=2)
    assert none is None
    assert torch.equal(torch.cat([first, second]), stored.double() / 255)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (3, "got int"),
        ([(Image.new("L", (2, 2)), 1)], "got Image"),
        ([{"picture": PIXELS}], "keys image, .* got picture"),
    ],
)
def test_what_holds_no_images_is_named(source: Any, named: str) -> None:
    with pytest.raises(BronetError, match=named):
        list(batches_of(source))


def test_radii_of_a_data_set_or_a_loader_are_those_of_its_images() -> None:
    model = bronet.load_pretrained("bronet-digits/digits")
    radii = bronet.certified_radius(model, PIXELS)
    for source in (DIGITS, DataLoader(DIGITS, batch_size=4)):
        torch.testing.assert_close(bronet.certified_radius(model, source), radii, rtol=1e-6, atol=0)


def test_an_image_set_is_a_data_set_of_torch() -> None:
    image, label = DIGITS[-1]
    assert (image.dtype, label) == (torch.float32, int(DIGITS.labels[-1]))
    assert torch.equal(image, DIGITS.pixels(torch.tensor([9]))[0])
    with pytest.raises(IndexError):
        DIGITS[len(DIGITS)]
    assert len(repr(load_dataset("digits", "train"))) < 80


def test_a_folder_tells_its_classes_channels_and_size(tmp_path: Path) -> None:
    class_folders(tmp_path / "pets", ["bee", "ant"], 2, "PNG", (9, 7))
    found = bronet.data.folder(tmp_path / "pets")
    assert (found.classes, tuple(found.images.shape)) == (("ant", "bee"), (4, 3, 7, 9))
    assert [Path(file).parts[0] for file in found.files] == ["ant", "ant", "bee", "bee"]
    last = found.subset(torch.tensor([3]))
    with Image.open(tmp_path / "pets" / last.files[0]) as image:
        assert np.array_equal(np.asarray(image).transpose(2, 0, 1), last.images[0].numpy())


def test_grey_images_have_one_channel_and_other_sizes_need_a_size(tmp_path: Path) -> None:
    for number, side in enumerate((8, 12)):
        (tmp_path / str(number)).mkdir()
        Image.new("L", (side, side), 100 * number).save(tmp_path / str(number) / "a.png")
    with pytest.raises(BronetError, match="8 x 8 and 12 x 12"):
        bronet.data.folder(tmp_path)
    assert tuple(bronet.data.folder(tmp_path, size=(6, 6)).images.shape) == (2, 1, 6, 6)


def test_a_folder_of_splits_is_no_folder_of_classes(tmp_path: Path) -> None:
    class_folders(tmp_path / "train", ["ant", "bee"], 1)
    for wrong in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(BronetError, match="one folder per class"):
            bronet.data.folder(wrong)
