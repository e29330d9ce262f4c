"""RandAugment's operations against Pillow, image by image, at several strengths."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from bronet.data.augment import (
    LARGEST_ENHANCEMENT,
    LARGEST_MAGNITUDE,
    LARGEST_ROTATION,
    LARGEST_SHEAR,
    LARGEST_TRANSLATION,
    Op,
    apply_ops,
    op_tables,
    rand_augment,
)
from bronet.data.load import load_digits
from bronet.data.randomness import generator_for
from bronet.errors import BronetError
from bronet.recipe.schema import RandAugmentOps

AUTOCONTRAST_LEVELS = 1
"""Pillow multiplies by a rounded quotient there, we divide exactly."""

PillowOp = Callable[[Image.Image, float], Image.Image]


def _shear_x(image: Image.Image, s: float) -> Image.Image:
    return _affine(image, (1, LARGEST_SHEAR * s, 0, 0, 1, 0))


def _shear_y(image: Image.Image, s: float) -> Image.Image:
    return _affine(image, (1, 0, 0, LARGEST_SHEAR * s, 1, 0))


def _translate_x(image: Image.Image, s: float) -> Image.Image:
    return _affine(image, (1, 0, -int(LARGEST_TRANSLATION * image.width * s), 0, 1, 0))


def _translate_y(image: Image.Image, s: float) -> Image.Image:
    return _affine(image, (1, 0, 0, 0, 1, -int(LARGEST_TRANSLATION * image.height * s)))


def _affine(image: Image.Image, numbers: tuple[float, ...]) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, numbers, resample=Image.Resampling.NEAREST, fillcolor=0)


def _enhanced(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> PillowOp:
    return lambda image, s: kind(image).enhance(1 + LARGEST_ENHANCEMENT * s)


PILLOW: dict[Op, PillowOp] = {
    Op.IDENTITY: lambda image, s: image,
    Op.SHEAR_X: _shear_x,
    Op.SHEAR_Y: _shear_y,
    Op.TRANSLATE_X: _translate_x,
    Op.TRANSLATE_Y: _translate_y,
    Op.ROTATE: lambda image, s: image.rotate(math.degrees(LARGEST_ROTATION * s)),
    Op.BRIGHTNESS: _enhanced(ImageEnhance.Brightness),
    Op.COLOR: _enhanced(ImageEnhance.Color),
    Op.CONTRAST: _enhanced(ImageEnhance.Contrast),
    Op.SHARPNESS: _enhanced(ImageEnhance.Sharpness),
    Op.POSTERIZE: lambda image, s: ImageOps.posterize(image, 8 - round(4 * abs(s))),
    Op.SOLARIZE: lambda image, s: ImageOps.solarize(image, 255 - 255 * abs(s)),  # type: ignore[arg-type]
    Op.AUTOCONTRAST: lambda image, s: ImageOps.autocontrast(image),
    Op.EQUALIZE: lambda image, s: ImageOps.equalize(image),
}


def _to_pillow(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).squeeze(-1).contiguous().numpy())


def _from_pillow(image: Image.Image) -> Tensor:
    array = torch.from_numpy(np.array(image))
    return array.unsqueeze(0) if array.ndim == 2 else array.permute(2, 0, 1)


def _pictures() -> Tensor:
    """Smooth colour pictures, noise, flat and nearly flat images, with an odd and a rectangular shape."""
    generator = generator_for(0, "pictures")
    coarse = torch.rand(6, 3, 5, 6, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=(33, 40), mode="bilinear", align_corners=True)
    noise = torch.randint(0, 256, (2, 3, 33, 40), generator=generator)
    flat = torch.full((1, 3, 33, 40), 77)
    two_levels = torch.where(noise[:1] > 200, 91, 90)
    return torch.cat([(smooth * 200 + 20).long(), noise, flat, two_levels]).to(torch.uint8)


def _digits() -> Tensor:
    """Real digits, enlarged to 24 x 24 pixels and to the range of a byte."""
    images = load_digits("test").images[:10]
    return (images * 15).repeat_interleave(3, dim=2).repeat_interleave(3, dim=3)


def _apply(images: Tensor, op: Op, magnitude: int, reverse: int) -> Tensor:
    n = len(images)
    fixed = op_tables(magnitude, *images.shape[-2:])
    return apply_ops(images, torch.full((n,), int(op)), torch.full((n,), reverse), fixed)


@pytest.mark.parametrize("source", [_pictures, _digits], ids=["colour", "grey"])
@pytest.mark.parametrize("op", list(Op), ids=lambda op: op.name.lower())
def test_each_operation_is_pillows(op: Op, source: Callable[[], Tensor]) -> None:
    images = source()
    tolerance = AUTOCONTRAST_LEVELS if op is Op.AUTOCONTRAST else 0
    for magnitude in (0, 9, 20, 30):
        for reverse in (0, 1):
            strength = (-1) ** reverse * magnitude / LARGEST_MAGNITUDE
            expected = torch.stack([_from_pillow(PILLOW[op](_to_pillow(i), strength)) for i in images])
            found = _apply(images, op, magnitude, reverse)
            torch.testing.assert_close(found.int(), expected.int(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("op", [op for op in Op if op is not Op.IDENTITY], ids=lambda op: op.name.lower())
def test_each_operation_but_the_identity_changes_pictures(op: Op) -> None:
    images = _pictures()
    assert not torch.equal(_apply(images, op, 20, 0), images)


def test_images_of_one_batch_get_their_own_operations() -> None:
    images = _pictures()[:1].repeat(2 * len(Op), 1, 1, 1)
    op = torch.arange(len(Op)).repeat_interleave(2)
    reverse = torch.tensor([0, 1]).repeat(len(Op))
    mixed = apply_ops(images, op, reverse, op_tables(9, 33, 40))
    for row, (o, r) in enumerate(zip(op.tolist(), reverse.tolist(), strict=True)):
        assert torch.equal(mixed[row : row + 1], _apply(images[:1], Op(o), 9, r))


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not() -> None:
    images = _pictures()
    first, again, other = (rand_augment(images, generator_for(seed, "augment"), probability=1.0) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


PHOTOMETRIC = [op for op in Op if op is not Op.IDENTITY and torch.equal(*op_tables(30, 8, 8).maps[[0, 2 * op]])]


@pytest.mark.parametrize(("operations", "wanted"), [("all", list(Op)), ("photometric", PHOTOMETRIC)])
def test_all_chosen_operations_are_drawn_and_no_others(
    operations: RandAugmentOps, wanted: list[Op], monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = _pictures()[6:7]
    monkeypatch.setattr("bronet.data.augment.OPERATIONS", 1)
    drawn = rand_augment(
        picture.repeat(300, 1, 1, 1), generator_for(0, "augment"), probability=1.0, operations=operations
    )
    results = {(op, r): _apply(picture, op, 9, r) for op in wanted for r in (0, 1)}
    hits = {key: (drawn == result).flatten(1).all(1) for key, result in results.items()}
    assert torch.stack(list(hits.values())).any(0).all()
    assert all(hit.any() for hit in hits.values())


def test_probability_zero_keeps_every_image() -> None:
    images = _pictures()
    assert torch.equal(rand_augment(images, generator_for(0, "augment"), probability=0.0), images)


def test_about_half_of_the_images_are_touched_at_probability_one_half() -> None:
    n = 2000
    images = _pictures()[6:7, :, :16, :16].repeat(n, 1, 1, 1)
    changed = (rand_augment(images, generator_for(0, "augment")) != images).flatten(1).any(1)
    # Untouched although chosen: both operations the identity, or two translations that undo each other.
    undone = (1 / 14) ** 2 + 2 * (1 / 14) ** 2 / 2
    expected, deviation = 0.5 * (1 - undone), 0.5 / math.sqrt(n)
    assert abs(float(changed.double().mean()) - expected) < 4 * deviation


@pytest.mark.parametrize("shape", [(1, 1), (2, 5), (8, 8)])
def test_tiny_images_keep_their_shape(shape: tuple[int, int]) -> None:
    images = torch.arange(16 * shape[0] * shape[1]).view(16, 1, *shape).to(torch.uint8)
    found = rand_augment(images, generator_for(0, "augment"), probability=1.0)
    assert found.shape == images.shape


def test_a_wrong_number_of_channels_is_named() -> None:
    with pytest.raises(BronetError, match=r"channels .* got 2"):
        rand_augment(torch.zeros(1, 2, 8, 8, dtype=torch.uint8), generator_for(0, "a"))
