"""From bytes that a stranger sent to an image of the model's size: limits first, then decoding, nothing on the disk.

The picture is turned as its camera says, laid on white where it is transparent, resized to cover the model's size and
cropped at the centre. Of an animation the first frame counts.
"""

import io
import warnings

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from bronet.data.decode import FAILURES, FORMATS, eight_bits
from bronet.errors import BronetError

MOST_BYTES = 8 * 2**20
MOST_PIXELS = 40_000_000


def read_upload(content: bytes, shape: tuple[int, int, int]) -> UInt8[Tensor, "c h w"]:
    """Return the picture in the model's channels, height and width; raise `BronetError` in plain words if it is none.

    A picture that has the model's size already keeps its pixels.
    """
    if not content:
        raise BronetError("this file is empty; choose an image")
    if len(content) > MOST_BYTES:
        raise BronetError(
            f"this file is too large: at most {MOST_BYTES // 2**20} MB, got {len(content) / 2**20:.1f} MB"
        )
    channels, height, width = shape
    flat = _decoded(content, "L" if channels == 1 else "RGB")
    fitted = flat if flat.size == (width, height) else ImageOps.fit(flat, (width, height), Image.Resampling.BICUBIC)
    pixels = np.array(fitted, dtype=np.uint8)
    return torch.from_numpy(np.ascontiguousarray(pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)))


def _decoded(content: bytes, mode: str) -> Image.Image:
    """Return the first frame, upright, in this mode; its size is checked before its pixels are touched."""
    try:
        with warnings.catch_warnings():
            # Pillow warns of things that a stranger's file may hold; the limit on pixels is our own and stricter.
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                _refuse_many_pixels(image)
                image.load()
                return _flattened(ImageOps.exif_transpose(image), mode)
    except BronetError:
        raise
    except UnidentifiedImageError:
        raise BronetError("this file is not an image that can be read; use PNG, JPEG, WebP, GIF or BMP") from None
    except Image.DecompressionBombError:
        raise _too_many_pixels("far more") from None
    except FAILURES:
        raise BronetError("this image is damaged or cut short; save it again and retry") from None


def _refuse_many_pixels(image: Image.Image) -> None:
    if image.width * image.height > MOST_PIXELS:
        raise _too_many_pixels(f"{image.width:,} x {image.height:,}")


def _too_many_pixels(got: str) -> BronetError:
    return BronetError(f"this image has too many pixels: at most {MOST_PIXELS // 10**6} million, got {got}")


def _flattened(image: Image.Image, mode: str) -> Image.Image:
    """Return the picture in the mode, on white where it is transparent."""
    image = eight_bits(image)
    if image.has_transparency_data:
        over = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", over.size, "white"), over)
    return image.convert(mode)
