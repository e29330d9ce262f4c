"""Constants that are computed once, and how float32 products are computed on a GPU: in float32, or rounded to TF32."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def memoized(maxsize: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Keep the results of the last `maxsize` different calls; torch.compile does not see them and computes anew."""

    def wrap(function: Callable[P, T]) -> Callable[P, T]:
        @lru_cache(maxsize=maxsize)
        def kept(*args: P.args, **kwargs: P.kwargs) -> T:
            with torch.inference_mode(False):  # whoever asks first: tensors of inference mode serve no gradient
                return function(*args, **kwargs)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return function(*args, **kwargs) if torch.compiler.is_dynamo_compiling() else kept(*args, **kwargs)  # type: ignore[arg-type]

        return call

    return wrap


@contextmanager
def float32_products(*, tf32: bool) -> Iterator[None]:
    """Let float32 products use TF32 inside, or not; what was set before returns afterwards."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
