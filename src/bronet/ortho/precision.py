"""How float32 products are computed on a GPU: in float32, or with factors rounded to TF32."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def float32_products(*, tf32: bool) -> Iterator[None]:
    """Let float32 products use TF32 inside, or not; what was set before returns afterwards."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
