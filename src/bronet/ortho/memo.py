"""Constants that are computed once: a cache that torch.compile does not trip over."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def memoized(maxsize: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Keep the results of the last `maxsize` different calls; a graph of torch.compile computes its own."""

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
