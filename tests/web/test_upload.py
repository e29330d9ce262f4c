"""What strangers upload: any picture becomes one of the model's size, anything else a sentence."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from bronet.data.decode import FORMATS
from bronet.errors import BronetError
from bronet.web.picture import read_upload
from web_files import drawn, encoded, noise_image, saved

RGB, GREY = (3, 6, 6), (1, 6, 6)
PNG = b"\x89PNG\r\n\x1a\n"
EXAMPLES = {kind: encoded(noise_image((3, 9, 7)), kind) for kind in FORMATS}


def refusal(content: bytes) -> str:
    with pytest.raises(BronetError) as caught:
        read_upload(content, RGB)
    return str(caught.value)


def outcome(content: bytes) -> str:
    """Return the shape of what was read, or the sentence."""
    try:
        return str(tuple(read_upload(content, RGB).shape))
    except BronetError as error:
        return str(error)


def chunk(name: bytes, content: bytes) -> bytes:
    """Return a part of a PNG file, with its length and its checksum."""
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png_header(width: int, height: int) -> bytes:
    """Return a PNG that announces a size and has no pixels."""
    return PNG + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) + chunk(b"IDAT", b"")


@pytest.mark.parametrize("shape", [RGB, GREY])
def test_a_picture_of_the_models_size_keeps_its_pixels(shape: tuple[int, int, int]) -> None:
    image = noise_image(shape)
    assert torch.equal(read_upload(encoded(image, "PNG"), shape), image)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("shape", [RGB, GREY, (3, 5, 8)])
def test_every_format_becomes_the_models_size(kind: str, shape: tuple[int, int, int]) -> None:
    assert read_upload(EXAMPLES[kind], shape).shape == shape


def test_a_wide_picture_is_cropped_at_its_centre() -> None:
    image = torch.zeros(3, 6, 30, dtype=torch.uint8)
    image[:, :, 12:18] = 200
    assert bool((read_upload(encoded(image, "PNG"), RGB) == 200).all())


@pytest.mark.parametrize("size", [(1, 1), (1, 3000), (3000, 1)])
def test_any_proportion_is_filled(size: tuple[int, int]) -> None:
    assert bool((read_upload(saved(Image.new("RGB", size, (9, 8, 7)), "PNG"), RGB)[0] == 9).all())


def test_a_camera_that_was_turned_is_honoured() -> None:
    image = torch.zeros(3, 6, 6, dtype=torch.uint8)
    image[:, 0] = 255  # a white line at the top
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    turned = read_upload(saved(drawn(image), "PNG", exif=exif), RGB)
    assert torch.equal(turned, image.rot90(-1, (1, 2)))


def test_what_is_transparent_becomes_white() -> None:
    clear = Image.new("RGBA", (6, 6), (0, 0, 0, 0))
    half = Image.new("LA", (6, 6), (0, 128))
    palette = Image.new("P", (6, 6), 3)
    palette.putpalette([0, 0, 0] * 256)
    assert bool((read_upload(saved(clear, "PNG"), RGB) == 255).all())
    assert bool((read_upload(saved(half, "PNG"), GREY) == 127).all())
    assert bool((read_upload(saved(palette, "PNG", transparency=3), RGB) == 255).all())


def test_sixteen_bits_become_eight() -> None:
    deep = Image.fromarray(np.full((6, 6), 200 * 256 + 17, dtype=np.uint16))
    assert bool((read_upload(saved(deep, "PNG"), GREY) == 200).all())


def test_a_palette_with_more_transparency_than_colours_is_damaged() -> None:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 3, 0, 0, 0)) + chunk(b"PLTE", b"\0\0\0")
    pixels = chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")
    assert "damaged" in refusal(PNG + header + chunk(b"tRNS", b"\xff" * 257) + pixels)


@pytest.mark.parametrize("mode", ["1", "CMYK", "YCbCr"])
def test_other_colours_are_converted(mode: str) -> None:
    kind = "PNG" if mode == "1" else "JPEG"
    assert int(read_upload(saved(Image.new("RGB", (6, 6), "white").convert(mode), kind), RGB).min()) >= 250


def test_the_first_picture_of_an_animation_counts() -> None:
    frames = [Image.new("RGB", (6, 6), colour) for colour in ("black", "white")]
    film = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert Image.open(io.BytesIO(film)).n_frames == 2
    assert int(read_upload(film, RGB).max()) == 0


def test_what_is_no_picture_is_told_so() -> None:
    assert "not an image" in refusal(b"just a text\n" * 40)
    assert "not an image" in refusal(saved(Image.new("RGB", (6, 6)), "TIFF"))
    assert "empty" in refusal(b"")


@pytest.mark.parametrize("kind", FORMATS)
def test_a_picture_that_is_cut_short_is_told_so(kind: str) -> None:
    whole = encoded(noise_image((3, 64, 64)), kind)
    assert "damaged or cut short" in refusal(whole[: len(whole) // 2])


@pytest.mark.parametrize("size", [(20_000, 2_001), (50_000, 50_000), (2**31 - 1, 2**31 - 1)])
def test_a_picture_with_too_many_pixels_is_refused_by_its_header(size: tuple[int, int]) -> None:
    assert "too many pixels" in refusal(png_header(*size))


@settings(max_examples=200, deadline=None)
@given(kind=st.sampled_from(FORMATS), changes=st.dictionaries(st.integers(0, 400), st.integers(0, 255), max_size=12))
def test_a_damaged_file_is_an_image_or_a_sentence(kind: str, changes: dict[int, int]) -> None:
    content = bytearray(EXAMPLES[kind])
    for place, value in changes.items():
        content[place % len(content)] = value
    assert outcome(bytes(content)).startswith(("(3, 6, 6)", "this file", "this image"))
