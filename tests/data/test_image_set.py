"""Image sets, the stratified split, the embedded digits and the descriptions of data sets."""

import hashlib
from importlib import resources

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from torch import Tensor

from bronet.data import ImageSet, load_dataset, stratified_split
from bronet.data.load import load_digits
from bronet.errors import BronetError
from bronet.recipe.schema import DATASETS, DatasetSpec, dataset_spec


def _set(images: Tensor, labels: Tensor, scale: int = 255) -> ImageSet:
    return ImageSet("sample", images, labels, ("cat", "dog"), scale)


IMAGES = torch.zeros(2, 1, 3, 3, dtype=torch.uint8)
LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_pixels_are_the_stored_bytes_over_the_scale_rounded_once(dtype: torch.dtype) -> None:
    every_byte = torch.arange(256, dtype=torch.uint8).view(256, 1, 1, 1)
    images = _set(every_byte, torch.zeros(256, dtype=torch.int64))
    found = images.pixels(torch.arange(256), dtype).flatten()
    assert found.dtype == dtype
    exact = torch.tensor([value / 255 for value in range(256)], dtype=torch.float64)
    torch.testing.assert_close(found.double(), exact, rtol=torch.finfo(dtype).eps / 2, atol=0)
    assert float(found.max()) == 1.0


def test_a_subset_keeps_images_with_their_labels_and_all_classes() -> None:
    digits = load_digits("test")
    index = torch.tensor([5, 3, 3])
    part = digits.subset(index)
    assert len(part) == 3
    assert torch.equal(part.images, digits.images[index])
    assert torch.equal(part.labels, digits.labels[index])
    assert part.classes == digits.classes


def test_moving_a_set_moves_images_and_labels() -> None:
    moved = _set(IMAGES, LABELS).to("cpu")
    assert moved.images.device == moved.labels.device == torch.device("cpu")
    assert torch.equal(moved.images, IMAGES)


@pytest.mark.parametrize(
    ("images", "labels", "scale", "named"),
    [
        (IMAGES, torch.tensor([0, 2]), 255, "0 <= label < 2, got 2"),
        (IMAGES, torch.tensor([-1, 0]), 255, "0 <= label < 2, got -1"),
        (IMAGES[:0], LABELS[:0], 255, r"not be empty, got torch.uint8 of shape \(0, 1, 3, 3\)"),
        (IMAGES[:, :, :0], LABELS, 255, r"not be empty, got torch.uint8 of shape \(2, 1, 0, 3\)"),
        (IMAGES + 17, LABELS, 16, "at most scale = 16, got 17"),
    ],
)
def test_a_malformed_set_is_named(images: Tensor, labels: Tensor, scale: int, named: str) -> None:
    with pytest.raises(BronetError, match=named):
        _set(images, labels, scale)


@pytest.mark.parametrize(
    ("images", "labels", "named"),
    [
        (IMAGES, torch.tensor([0]), "labels"),
        (IMAGES, torch.tensor([0.0, 1.0]), "labels"),
        (IMAGES[0], LABELS, "images"),
        (IMAGES.float(), LABELS, "images"),
    ],
)
def test_a_wrong_shape_or_dtype_is_named(images: Tensor, labels: Tensor, named: str) -> None:
    # Where annotations are checked at run time, that check comes before ours.
    with pytest.raises((BronetError, TypeCheckError), match=named):
        _set(images, labels)


@given(labels=st.lists(st.integers(0, 4), min_size=2, max_size=80), data=st.data())
def test_a_split_is_a_partition_in_proportion_to_the_classes(labels: list[int], data: st.DataObject) -> None:
    n = len(labels)
    held_out = data.draw(st.integers(1, n - 1))
    kept, held = stratified_split(torch.tensor(labels), held_out, seed=data.draw(st.integers(0, 3)))
    assert len(held) == held_out
    assert torch.equal(torch.cat([kept, held]).sort().values, torch.arange(n))
    for label in set(labels):
        share = sum(labels[i] == label for i in held.tolist())
        assert abs(share - labels.count(label) * held_out / n) < 1


def test_a_split_depends_on_its_seed_only() -> None:
    labels = torch.arange(100) % 10
    first, again, other = (stratified_split(labels, 30, seed)[1] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("held_out", [0, 10, -1])
def test_a_split_must_leave_images_on_both_sides(held_out: int) -> None:
    with pytest.raises(BronetError, match=f"1 <= held_out < n = 10, got {held_out}"):
        stratified_split(torch.zeros(10, dtype=torch.int64), held_out, 0)


def test_digits_are_1297_training_and_500_test_images_that_share_none() -> None:
    train, test = load_dataset("digits", "train"), load_dataset("digits", "test")
    assert (len(train), len(test)) == (1297, 500)
    assert train.images.shape[1:] == dataset_spec("digits").shape
    assert int(torch.cat([train.images, test.images]).max()) == train.scale == 16
    counts = torch.bincount(torch.cat([train.labels, test.labels]))
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (torch.bincount(test.labels) - counts * 500 / 1797).abs().max() < 1


def test_the_split_of_the_digits_never_changes() -> None:
    test = load_digits("test")
    digest = hashlib.sha256(test.images.numpy().tobytes() + test.labels.numpy().tobytes()).hexdigest()
    assert digest == "db637b801d9c22f0a0de7df9e468dfa37802293a630a9c48c890449fd952cd88"


def test_digits_carry_their_attribution() -> None:
    text = resources.files("bronet.data").joinpath("DIGITS-ATTRIBUTION.txt").read_text(encoding="utf-8")
    for needed in ("Alpaydin", "Kaynak", "CC BY 4.0", "10.24432/C50P49", "What was changed"):
        assert needed in text


@pytest.mark.parametrize("name", ["tiny-imagenet", "imagenet"])
def test_data_sets_that_are_not_there_say_so(name: str) -> None:
    with pytest.raises(BronetError, match=f"{name} must be .*--data-dir"):
        load_dataset(name, "test")


def test_an_unknown_split_is_named() -> None:
    with pytest.raises(BronetError, match="got 'validation'"):
        load_dataset("digits", "validation")


def test_a_misspelt_data_set_is_answered_with_the_known_ones() -> None:
    with pytest.raises(BronetError, match=r"must be one of digits, cifar10, .*, got 'CIFAR-10'"):
        dataset_spec("CIFAR-10")


def test_every_description_is_found_by_its_name() -> None:
    assert {name: dataset_spec(name).name for name in DATASETS} == {name: name for name in DATASETS}
    assert dataset_spec("imagenet").shape == (3, 224, 224)


@pytest.mark.parametrize(
    ("shape", "classes", "scale", "named"),
    [((0, 8, 8), 10, 16, "channels"), ((1, 8, 8), 1, 16, "classes"), ((1, 8, 8), 10, 256, "scale")],
)
def test_an_impossible_description_is_refused(
    shape: tuple[int, int, int], classes: int, scale: int, named: str
) -> None:
    with pytest.raises(BronetError, match=named):
        DatasetSpec("sample", *shape, classes, scale)
