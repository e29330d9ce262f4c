"""Streams and mixed batches: the same images from any step, with any number of workers and processes."""

import random
from pathlib import Path

import pytest
import torch

from bronet.data import DecodedStream, FileSet, ImageSet, MixedBatches, ResidentStream, open_images
from bronet.data.batches import PlannedBatch
from bronet.data.decode import decode_random
from bronet.data.randomness import stable_hash
from bronet.errors import BronetError
from bronet.recipe import Recipe, named_recipe, override
from generated_images import class_folders

CPU = torch.device("cpu")


def mixed_recipe(*settings: str) -> Recipe:
    """Batches of 4 real and 6 generated CIFAR images."""
    return override(named_recipe("cifar10/bronet-l-edm"), ["train.batch_size=10", "data.synthetic_batch=6", *settings])


def noise(count: int, seed: int) -> ImageSet:
    draw = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, 32, 32), generator=draw, dtype=torch.uint8)
    return ImageSet("noise", images, torch.arange(count) % 10, tuple("0123456789"), 255)


def mixed(recipe: Recipe, *, rank: int = 0, world: int = 1) -> MixedBatches:
    real, extra = ResidentStream(noise(22, 0)), ResidentStream(noise(17, 1))
    return MixedBatches(recipe, real, extra, device=CPU, rank=rank, world=world)


def test_batches_resumed_at_any_step_are_those_of_the_whole_run() -> None:
    batches = mixed(mixed_recipe())
    assert batches.steps_per_epoch == 5
    whole = list(batches.between(0, 12))
    for start in (1, 5, 7, 11):
        for expected, found in zip(whole[start:], mixed(mixed_recipe()).between(start, 12), strict=True):
            assert torch.equal(expected.pixels, found.pixels)
            assert torch.equal(expected.labels, found.labels)
    assert not torch.equal(whole[0].pixels, whole[5].pixels)


def test_the_processes_shares_are_the_batch_of_one_process() -> None:
    whole = list(mixed(mixed_recipe()).between(0, 6))
    shares = [list(mixed(mixed_recipe(), rank=rank, world=2).between(0, 6)) for rank in (0, 1)]
    for batch, first, second in zip(whole, *shares, strict=True):
        parts = [(share.pixels[:2], share.pixels[2:]) for share in (first, second)]
        assert torch.equal(batch.pixels, torch.cat([parts[0][0], parts[1][0], parts[0][1], parts[1][1]]))
        assert torch.equal(batch.labels[:4], torch.cat([first.labels[:2], second.labels[:2]]))


def test_generated_images_have_their_own_order_and_a_lighter_augmentation() -> None:
    plain = mixed_recipe("data.flip=false", "data.synthetic_crop_padding=0")
    extra = noise(17, 1)
    visited: list[int] = []
    for batch in mixed(plain).between(0, 17):  # 17 steps of 6 are 6 passes over 17 images
        for pixels in batch.pixels[4:]:
            stored = (pixels * 255).round().to(torch.uint8)
            (position,) = [i for i in range(17) if torch.equal(extra.images[i], stored)]
            visited.append(position)
    assert len(visited) == 6 * 17
    for start in range(0, len(visited), 17):
        assert sorted(visited[start : start + 17]) == list(range(17))


@pytest.mark.parametrize(("border", "darkest"), [("black", 0.0), ("edge", 1.0), ("mirror", 1.0)])
def test_the_border_of_the_recipe_is_that_of_real_and_of_generated_images(border: str, darkest: float) -> None:
    white = ImageSet("white", torch.full((22, 3, 32, 32), 255, dtype=torch.uint8), torch.zeros(22).long(), ("w",), 255)
    recipe = mixed_recipe(f"data.border={border}", "data.randaugment_probability=0")
    batches = MixedBatches(recipe, ResidentStream(white), ResidentStream(white), device=CPU)
    (batch,) = batches.between(0, 1)
    assert float(batch.pixels[:4].min()) == float(batch.pixels[4:].min()) == darkest


def test_mixing_needs_both_streams() -> None:
    with pytest.raises(BronetError, match="needs the generated images, too"):
        MixedBatches(mixed_recipe(), ResidentStream(noise(22, 0)), device=CPU)
    with pytest.raises(BronetError, match="multiple of the 4 processes, got 6"):
        mixed(mixed_recipe(), world=4)


def imagenet_like(tmp_path: Path, *, flip: bool = True) -> tuple[FileSet, Recipe]:
    class_folders(tmp_path / "photos" / "train", ["a", "b"], 4, "JPEG", (70, 50))
    recipe = override(
        named_recipe("cifar10/bronet-small"),
        [
            "data.name=cifar10",
            "data.resize=[32, 40]",
            "data.randaugment_probability=1.0",
            f"data.flip={str(flip).lower()}",
            "train.batch_size=4",
        ],
    )
    own = override(recipe, [])
    files = open_images(
        type(own.data)(name="photos", channels=3, height=32, width=32, classes=2, resize=(32, 40)),
        "train",
        data_dir=tmp_path,
    )
    assert isinstance(files, FileSet)
    return files, recipe


def decoded(files: FileSet, recipe: Recipe, workers: int) -> DecodedStream:
    data = recipe.data
    return DecodedStream(files, data.spec(), resize=data.resize, flip=data.flip, seed=3, workers=workers, device=CPU)


def test_decoding_does_not_depend_on_the_workers(tmp_path: Path) -> None:
    files, recipe = imagenet_like(tmp_path)
    runs = [list(MixedBatches(recipe, decoded(files, recipe, workers), device=CPU).between(0, 5)) for workers in (0, 2)]
    for alone, shared in zip(*runs, strict=True):
        assert torch.equal(alone.pixels, shared.pixels)
        assert torch.equal(alone.labels, shared.labels)
    assert runs[0][0].pixels.shape == (4, 3, 32, 32)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_image_is_one_line_with_its_name(tmp_path: Path, workers: int) -> None:
    files, recipe = imagenet_like(tmp_path)
    files.path(5).write_bytes(files.path(5).read_bytes()[:80])
    with pytest.raises(BronetError, match=files.path(5).name) as caught:
        list(decoded(files, recipe, workers).deliver([PlannedBatch(0, torch.arange(8))]))
    assert "\n" not in str(caught.value)


def test_every_epoch_crops_anew(tmp_path: Path) -> None:
    files, recipe = imagenet_like(tmp_path)
    stream = decoded(files, recipe, 0)
    plan = [PlannedBatch(epoch, torch.tensor([0, 5])) for epoch in (0, 1, 0)]
    first, other, again = (images for images, _ in stream.deliver(plan))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_shorter_side_covers_its_range(tmp_path: Path) -> None:
    files, recipe = imagenet_like(tmp_path, flip=False)
    spec = recipe.data.spec()
    seen = set()
    for epoch in range(40):
        draw = random.Random(stable_hash(0, "decode", epoch, 0))
        image = decode_random(files.path(0), spec, resize=(32, 40), flip=False, draw=draw)
        assert image.shape == (3, 32, 32)
        seen.add(bytes(image.flatten().tolist()))
    assert len(seen) > 20
