"""Tensors as PNG pictures inside a page: images, noise, and all sample images in one sheet.

A picture has eight bits per channel; what is computed never passes through one.
"""

import base64
import io
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

WHITE = 255
MOST_TILE = 64
"""Pixels of a thumbnail's side at most: larger images are shrunk for the sheet."""
SHEET_COLUMNS = 16


@dataclass(frozen=True)
class Sheet:
    """All thumbnails in one picture, row by row."""

    picture: str
    columns: int
    rows: int


def picture(image: Float[Tensor, "c h w"]) -> str:
    """Return pixels in [0, 1] as the data address of a PNG."""
    return _address(_drawn((image * WHITE).round().clamp(0, WHITE).to(torch.uint8)))


def noise_picture(noise: Float[Tensor, "c h w"]) -> tuple[str, float]:
    """Return the noise around middle grey, magnified until it fills the range, and the magnification."""
    largest = float(noise.abs().max())
    gain = 0.5 / largest if largest > 0 else 1.0
    return picture(0.5 + gain * noise), gain


def sheet(images: UInt8[Tensor, "n c h w"], *, scale: int) -> Sheet:
    """Return thumbnails of all images, whose stored values lie in 0 .. scale."""
    tiles = [_drawn((image.to(torch.float64) * (WHITE / scale)).round().to(torch.uint8)) for image in images]
    height, width = images.shape[2:]
    shrink = min(1.0, MOST_TILE / max(height, width))
    size = (max(1, round(width * shrink)), max(1, round(height * shrink)))
    rows = -(-len(tiles) // SHEET_COLUMNS)
    whole = Image.new(tiles[0].mode, (SHEET_COLUMNS * size[0], rows * size[1]))
    for number, tile in enumerate(tiles):
        small = tile if tile.size == size else tile.resize(size, Image.Resampling.BOX)
        whole.paste(small, (number % SHEET_COLUMNS * size[0], number // SHEET_COLUMNS * size[1]))
    return Sheet(_address(whole), SHEET_COLUMNS, rows)


def _drawn(image: UInt8[Tensor, "c h w"]) -> Image.Image:
    planes = np.ascontiguousarray(image.cpu().numpy().transpose(1, 2, 0))
    return Image.fromarray(planes[:, :, 0] if planes.shape[2] == 1 else planes)


def _address(drawn: Image.Image) -> str:
    buffer = io.BytesIO()
    drawn.save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
