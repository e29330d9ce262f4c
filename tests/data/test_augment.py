"""Crop and flip: pixels are moved, never changed, and every image draws for itself."""

from typing import get_args

import pytest
import torch
from torch import Tensor

from bronet.data.augment import Op, apply_ops, augment, gather_pixels, op_tables, random_crop, random_flip
from bronet.data.load import load_digits
from bronet.data.randomness import generator_for
from bronet.errors import BronetError
from bronet.recipe.schema import Border, DataRecipe


def _numbered(n: int, height: int, width: int) -> Tensor:
    """Images whose pixels are all different and never zero, so that a pixel tells where it came from."""
    image = torch.arange(1, height * width + 1, dtype=torch.float64).view(1, 1, height, width)
    return image.repeat(n, 2, 1, 1)


def _windows(image: Tensor, padding: int, mode: str) -> list[Tensor]:
    height, width = image.shape[-2:]
    padded = torch.nn.functional.pad(image, (padding,) * 4, mode=mode)
    places = range(2 * padding + 1)
    return [padded[..., i : i + height, j : j + width] for i in places for j in places]


@pytest.mark.parametrize(("border", "mode"), [("black", "constant"), ("edge", "replicate"), ("mirror", "reflect")])
def test_crops_are_windows_of_the_padded_image_and_all_windows_occur(border: Border, mode: str) -> None:
    padding = 1
    images = _numbered(400, 5, 7)
    windows = torch.stack(_windows(images[0], padding, mode))
    crops = random_crop(images, padding, generator_for(0, "crop"), border=border)
    hits = (crops.unsqueeze(1) == windows.unsqueeze(0)).flatten(2).all(2)
    assert hits.sum(1).eq(1).all()
    assert hits.any(0).all()


def test_a_crop_of_bytes_is_the_crop_of_the_same_floats() -> None:
    images = load_digits("test").images
    of_bytes, of_floats = (random_crop(x, 2, generator_for(0, "crop")) for x in (images, images.double()))
    assert of_bytes.dtype == torch.uint8
    assert torch.equal(of_bytes.double(), of_floats)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_an_image_is_mirrored_as_often_as_it_takes(size: int) -> None:
    image = _numbered(1, size, 1)
    position = torch.arange(-12, 13)
    row = torch.stack([position[i : i + size] for i in range(len(position) - size)]).unsqueeze(2)
    found = gather_pixels(image.expand(len(row), -1, -1, -1), row, row.new_zeros(len(row), 1, 1), border="mirror")
    to_and_fro = [*range(size), *range(size - 2, 0, -1)]
    expected = torch.tensor([[1.0 + to_and_fro[int(p) % len(to_and_fro)] for p in window] for window in row])
    assert torch.equal(found[:, 0, :, 0], expected.double())


def test_a_border_other_than_black_shows_nothing_that_the_image_does_not() -> None:
    white = torch.full((256, 3, 32, 32), 255, dtype=torch.uint8)
    geometric = torch.arange(256) % 6
    assert all(op in geometric for op in (Op.SHEAR_X, Op.SHEAR_Y, Op.TRANSLATE_X, Op.TRANSLATE_Y, Op.ROTATE))
    for border, expected in (("edge", 255), ("mirror", 255), ("black", 0)):
        moved = apply_ops(white, geometric, torch.arange(256) % 2, op_tables(30, 32, 32), border=border)
        cropped = random_crop(white, 4, generator_for(0, "crop"), border=border)
        assert int(moved.min()) == int(cropped.min()) == expected


@pytest.mark.parametrize("border", ["edge", "mirror"])
def test_a_border_changes_only_what_comes_from_outside(border: Border) -> None:
    images = torch.randint(1, 256, (64, 3, 32, 32), dtype=torch.uint8, generator=generator_for(0, "images"))
    black, other = (
        augment(images, generator_for(0, "augment"), DataRecipe(name="cifar10", crop_padding=4, flip=True, border=each))
        for each in ("black", border)
    )
    inside = black != 0
    assert torch.equal(black[inside], other[inside])
    assert not inside.all()
    assert (other != 0).all()


def test_a_crop_with_no_padding_keeps_every_image() -> None:
    images = _numbered(3, 4, 6)
    assert torch.equal(random_crop(images, 0, generator_for(0, "crop")), images)


def test_flip_is_its_own_inverse() -> None:
    images = load_digits("test").images
    once = random_flip(images, generator_for(0, "flip"))
    assert not torch.equal(once, images)
    assert torch.equal(random_flip(once, generator_for(0, "flip")), images)


def test_each_image_is_flipped_whole_or_not_at_all() -> None:
    images = _numbered(64, 3, 4)
    flipped = random_flip(images, generator_for(0, "flip"))
    kept = (flipped == images).flatten(1).all(1)
    mirrored = (flipped == images.flip(-1)).flatten(1).all(1)
    assert (kept ^ mirrored).all()
    assert kept.any()
    assert mirrored.any()


def test_augment_repeats_its_bits_for_the_same_seed() -> None:
    images = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8, generator=generator_for(0, "images"))
    data = DataRecipe(name="cifar10", crop_padding=1, flip=True, randaugment_probability=0.5)
    first, again, other = (augment(images, generator_for(s, "augment", 3), data) for s in (0, 0, 1))
    assert first.dtype == torch.uint8
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_augment_with_everything_off_keeps_every_image() -> None:
    images = load_digits("test").images
    found = augment(images, generator_for(0, "augment"), DataRecipe(name="digits"))
    assert torch.equal(found, images)


def test_augmented_digits_stay_within_their_scale() -> None:
    digits = load_digits("train")
    found = augment(digits.images, generator_for(0, "augment"), DataRecipe(name="digits", crop_padding=1, flip=True))
    assert int(found.max()) <= digits.scale


def test_randaugment_refuses_images_of_another_scale() -> None:
    digits = load_digits("test")
    with pytest.raises(BronetError, match="scale 255, got scale 16"):
        augment(digits.images, generator_for(0, "augment"), DataRecipe(name="digits", randaugment_probability=0.5))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("border", get_args(Border))
@pytest.mark.parametrize("op", list(Op), ids=lambda op: op.name.lower())
def test_an_operation_gives_the_same_bits_on_a_gpu(op: Op, border: Border) -> None:
    images = torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8, generator=generator_for(0, "images"))
    ops, reverse = torch.full((16,), int(op)), torch.arange(16) % 2
    fixed = op_tables(9, 32, 32)
    gpu = torch.device("cuda")
    on_gpu = apply_ops(images.to(gpu), ops.to(gpu), reverse.to(gpu), fixed.to(gpu), border=border)
    assert torch.equal(on_gpu.cpu(), apply_ops(images, ops, reverse, fixed, border=border))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("border", get_args(Border))
def test_augment_on_a_gpu_never_waits_for_it(border: Border) -> None:
    images = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8, device="cuda")
    generator = generator_for(0, "augment", device="cuda")
    data = DataRecipe(name="cifar10", crop_padding=4, flip=True, randaugment_probability=0.5, border=border)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = augment(images, generator, data)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert found.shape == images.shape
