"""From an encoded image (JPEG, PNG, ...) to bytes of a fixed size: unchanged, or cropped at random or at the centre.

Random resizing and cropping is ImageNet's augmentation (App. B.3; the published range of the shorter side is 224 to
288). A JPEG is decoded by Pillow, at reduced size where resizing would discard the rest anyway.
"""

import io
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from bronet.errors import BronetError
from bronet.recipe.schema import DatasetSpec

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
READ = (*FORMATS, "PPM", "TIFF")
"""The usual formats, and those of data sets; reading others, such as PostScript, would run programs."""
FAILURES = (
    *(OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, OverflowError, MemoryError),
    *(NotImplementedError, struct.error),
)
"""The exceptions of Pillow's decoders for bytes that are not an image."""
SIXTEEN_BITS = ("I", "I;16", "I;16B", "I;16L")
MODES = {1: "L", 3: "RGB"}
CENTRE_MARGIN = 8 / 7
"""Evaluation resizes the shorter side to this times the crop: 256 for 224, the usual choice."""
LARGEST_ASPECT_RATIO = 100
"""Resizing the height of a picture of one very long row to 256 would exhaust the memory."""


def image_shape(path: Path) -> tuple[int, int, int]:
    """Return channels (1 or 3), height and width of an image file, whose pixels are not read."""
    with _opened(path) as image:
        return 1 if image.mode in ("1", "L", *SIXTEEN_BITS) else 3, image.height, image.width


def decode_whole(source: Path | bytes, spec: DatasetSpec) -> UInt8[Tensor, "c h w"]:
    """Return an image that must have the size of the data set."""
    image = _decoded(source, spec)
    if image.size != (spec.width, spec.height):
        raise BronetError(
            f"image {_name(source)} must have {spec.width} x {spec.height} pixels, got {image.width} x {image.height}; "
            "set data.resize to a range such as [224, 288] to resize and crop"
        )
    return _to_tensor(image)


def decode_random(
    source: Path | bytes, spec: DatasetSpec, *, resize: tuple[int, ...], flip: bool, draw: random.Random
) -> UInt8[Tensor, "c h w"]:
    """Return the image with its shorter side resized uniformly into the range, cropped and flipped at random."""
    image = _cropped(source, spec, draw.randint(*resize), lambda free: draw.randint(0, free))
    if flip and draw.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return _to_tensor(image)


def decode_centre(source: Path | bytes, spec: DatasetSpec) -> UInt8[Tensor, "c h w"]:
    """Return the centre of the image, for evaluation."""
    side = round(max(spec.height, spec.width) * CENTRE_MARGIN)
    return _to_tensor(_cropped(source, spec, side, lambda free: free // 2))


def eight_bits(image: Image.Image) -> Image.Image:
    """Return the image with at most 8 bits a channel; Pillow's own conversion would make 16 bits white."""
    if image.mode == "F":
        raise BronetError("an image must hold whole numbers of 8 or 16 bits, got floating point")
    if image.mode not in SIXTEEN_BITS:
        return image
    deep = np.asarray(image).astype(np.int64) >> 8
    return Image.fromarray(deep.clip(0, 255).astype(np.uint8))


@contextmanager
def _opened(source: Path | bytes) -> Iterator[Image.Image]:
    """Yield an image whose pixels are not read yet; all that goes wrong inside is told in one line."""
    if isinstance(source, Path) and not source.is_file():  # reading a pipe would wait forever
        raise BronetError(f"image {source} must be a file, but there is none of this name; get the data set again")
    try:
        with Image.open(source if isinstance(source, Path) else io.BytesIO(source), formats=READ) as image:
            yield image
    except (Image.DecompressionBombError, *FAILURES) as error:
        # Pillow's words for an unknown format name an object instead of a file.
        is_unknown = isinstance(error, UnidentifiedImageError)
        reason = "no image of a known format" if is_unknown else " ".join(str(error).split())
        raise BronetError(f"cannot decode image {_name(source)} ({reason}); get it again or leave it out") from None


def _decoded(source: Path | bytes, spec: DatasetSpec, *, least: int | None = None) -> Image.Image:
    """Return the image in the data set's channels; a JPEG is decoded no larger than needed for `least` pixels."""
    if spec.channels not in MODES:
        raise BronetError(f"channels of decoded images must be 1 or 3, got {spec.channels}")
    with _opened(source) as image:
        if least is not None:
            # Twice the wanted size, so that the resize after it still averages.
            image.draft(MODES[spec.channels], (2 * least, 2 * least))
        return eight_bits(image).convert(MODES[spec.channels])


def _cropped(source: Path | bytes, spec: DatasetSpec, side: int, place: Callable[[int], int]) -> Image.Image:
    """Return the image, its shorter side resized, cropped from where `place` says of the pixels that are left over."""
    image = _decoded(source, spec, least=side)
    if max(image.size) > LARGEST_ASPECT_RATIO * min(image.size):
        limit = f"at most {LARGEST_ASPECT_RATIO} times the other"
        raise BronetError(f"one side of image {_name(source)} must be {limit}, got {image.size}")
    width, height = (max(side, round(size * (side / min(image.size)))) for size in image.size)
    left, top = place(width - spec.width), place(height - spec.height)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    return image.crop((left, top, left + spec.width, top + spec.height))


def _to_tensor(image: Image.Image) -> UInt8[Tensor, "c h w"]:
    pixels = np.atleast_3d(np.array(image, dtype=np.uint8))
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def _name(source: Path | bytes) -> str:
    return str(source) if isinstance(source, Path) else f"of {len(source)} bytes"
