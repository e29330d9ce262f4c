"""Image files as strangers send them, made in memory."""

import io

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor


def noise_image(shape: tuple[int, int, int], seed: int = 0) -> UInt8[Tensor, "c h w"]:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def drawn(image: UInt8[Tensor, "c h w"]) -> Image.Image:
    planes = np.ascontiguousarray(image.numpy().transpose(1, 2, 0))
    return Image.fromarray(planes[:, :, 0] if planes.shape[2] == 1 else planes)


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


def encoded(image: UInt8[Tensor, "c h w"], kind: str) -> bytes:
    return saved(drawn(image), kind)
