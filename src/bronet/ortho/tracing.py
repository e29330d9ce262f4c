"""What torch's tools ask of code that runs fast: whether one of them follows it, and tables that outlive them.

torch.func, torch.jit.trace and torch.export follow a forward pass with stand-ins for tensors. They need operations that
torch can differentiate and batch by itself, whose course depends on no value; and no stand-in may be kept.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

import torch
from torch.jit._trace import is_tracing as is_followed_by_jit
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

__all__ = ["is_followed_by_jit", "is_traced", "memoized"]

P = ParamSpec("P")
T = TypeVar("T")


def is_traced() -> bool:
    """Whether torch.func, torch.jit.trace or torch.export follows what runs; torch.compile knows our gradients."""
    if torch.compiler.is_dynamo_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or is_followed_by_jit() or torch.compiler.is_exporting()


def memoized(maxsize: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Keep the results of the last `maxsize` different calls; torch.compile and torch.func compute anew."""

    def wrap(function: Callable[P, T]) -> Callable[P, T]:
        # Whoever asks first: tensors of inference mode serve no gradient, and those of an export hold no numbers.
        kept = lru_cache(maxsize=maxsize)(torch.inference_mode(False)(function))

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            if torch.compiler.is_dynamo_compiling() or torch._C._are_functorch_transforms_active():
                return function(*args, **kwargs)
            # A recording must not depend on what was kept before: a table is a constant in every one.
            recording = torch._C._get_tracing_state()
            torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
            try:
                with _disable_current_modes() if _get_current_dispatch_mode_stack() else nullcontext():
                    return kept(*args, **kwargs)  # type: ignore[arg-type]
            finally:
                torch._C._set_tracing_state(recording)  # type: ignore[attr-defined]

        return call

    return wrap
