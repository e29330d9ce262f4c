"""What a stranger's image file may be to Pillow: the formats that are opened, how they fail, and their depth."""

import struct

import numpy as np
from PIL import Image

from bronet.errors import BronetError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""What everyone can make; others, such as PostScript, would run programs to be read."""
FAILURES = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    OverflowError,
    MemoryError,
    NotImplementedError,
    struct.error,
)
"""What Pillow's decoders raise at bytes that are not an image."""
_SIXTEEN_BITS = ("I", "I;16", "I;16B", "I;16L")
_BITS_TO_DROP = 8


def eight_bits(image: Image.Image) -> Image.Image:
    """Return the image with at most 8 bits a channel; Pillow's own conversion would make 16 bits white."""
    if image.mode == "F":
        raise BronetError("an image must hold whole numbers of 8 or 16 bits, got floating point")
    if image.mode not in _SIXTEEN_BITS:
        return image
    deep = np.asarray(image).astype(np.int64) >> _BITS_TO_DROP
    return Image.fromarray(deep.clip(0, 255).astype(np.uint8))
