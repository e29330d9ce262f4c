"""Pictures in and out: from bytes that a stranger sent to an image of the model's size, and from tensors to PNG.

In: `bronet.web.server` has limited the bytes; the pixels are counted before they are decoded, nothing is written to the
disk. The picture is turned as its camera says, laid on white where it is transparent, resized to cover the model's size
and cropped at the centre. Of an animation the first frame counts.

Out: images, noise, and all sample images in one sheet, as the data addresses of PNG pictures. These have eight bits per
channel; what is computed never passes through one.
"""

import io
import warnings

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from bronet.data.decode import FAILURES, FORMATS, eight_bits
from bronet.errors import BronetError
from bronet.files import Json
from bronet.report.gallery import drawn, png_address

MAX_PIXELS = 40_000_000
MAX_TILE = 64
"""Pixels of a thumbnail's side at most: larger images are shrunk for the sheet."""
SHEET_COLUMNS = 16


def read_upload(content: bytes, shape: tuple[int, ...]) -> UInt8[Tensor, "c h w"]:
    """Return the picture in the model's channels, height and width; raise `BronetError` in plain words if it is none.

    A picture that has the model's size already keeps its pixels.
    """
    if not content:
        raise BronetError("this file is empty; choose an image")
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
                if image.width * image.height > MAX_PIXELS:
                    raise _too_many_pixels(f"{image.width:,} x {image.height:,}")
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


def _too_many_pixels(got: str) -> BronetError:
    return BronetError(f"this image has too many pixels: at most {MAX_PIXELS // 10**6} million, got {got}")


def _flattened(image: Image.Image, mode: str) -> Image.Image:
    """Return the picture in the mode, on white where it is transparent."""
    image = eight_bits(image)
    if image.has_transparency_data:
        over = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", over.size, "white"), over)
    return image.convert(mode)


def picture(image: Float[Tensor, "c h w"]) -> str:
    """Return pixels in [0, 1] as the data address of a PNG."""
    return png_address(drawn(image))


def noise_picture(noise: Float[Tensor, "c h w"]) -> tuple[str, float]:
    """Return the noise around middle grey, magnified until it fills the range, and the magnification."""
    largest = float(noise.abs().max())
    gain = 0.5 / largest if largest > 0 else 1.0
    return picture(0.5 + gain * noise), gain


def sheet(images: UInt8[Tensor, "n c h w"], *, scale: int) -> Json:
    """Return thumbnails of all images, whose stored values lie in 0 .. scale, row by row in one picture."""
    tiles = [drawn(image, scale) for image in images]
    shrink = min(1.0, MAX_TILE / max(tiles[0].size))
    width, height = (max(1, round(side * shrink)) for side in tiles[0].size)
    rows = -(-len(tiles) // SHEET_COLUMNS)
    whole = Image.new(tiles[0].mode, (SHEET_COLUMNS * width, rows * height))
    for number, tile in enumerate(tiles):
        row, column = divmod(number, SHEET_COLUMNS)
        whole.paste(tile.resize((width, height), Image.Resampling.BOX), (column * width, row * height))
    return {"picture": png_address(whole), "columns": SHEET_COLUMNS, "rows": rows}
