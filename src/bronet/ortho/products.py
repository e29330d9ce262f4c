"""How the maps of this room run: products in float32, what torch's tools can follow, and tables that outlive a call.

torch.func, torch.jit.trace and torch.export follow a forward pass with stand-ins for tensors. They need operations that
torch can differentiate and batch by itself, whose course depends on no value; and no stand-in may be kept.
"""

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache, wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.jit._trace import is_tracing as is_followed_by_jit
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

__all__ = ["float32_products", "has_fast_blas", "is_followed_by_jit", "is_traced", "memoized", "product"]

# Multiplications and sides below which a product through oneDNN gains nothing: it takes 12 us to begin, twice that as
# one of a batch, and a matrix that is read once for a few rows or columns is moved first.
_LEAST_ONEDNN_PRODUCT, _LEAST_ONEDNN_SIDE = 2**20, 16

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


def product(A: Float[Tensor, "*a m k"], B: Float[Tensor, "*b k n"]) -> Float[Tensor, "*batch m n"]:
    """Return A B; large float32 products on a CPU through oneDNN, where torch has it and no gradient is wanted.

    oneDNN is twice as fast as a BLAS that does not use all of a processor's vector units, as MKL on AMD's. MKL is
    faster on Intel's, and takes a batch at once.
    """
    plain = A.device.type != "cpu" or A.dtype != torch.float32 or torch.compiler.is_compiling() or is_traced()
    if plain or (torch.is_grad_enabled() and (A.requires_grad or B.requires_grad)):
        return A @ B  # without a look at sizes, which would bind those of an exported program
    (m, k), n, batch = A.shape[-2:], B.shape[-1], max(A.shape[:-2], B.shape[:-2], key=len)
    single = A.numel() == m * k and B.numel() == k * n
    large = m * k * n >= (1 if single else 2) * _LEAST_ONEDNN_PRODUCT and min(m, n) >= _LEAST_ONEDNN_SIDE
    if not large or not (single or A.shape[:-2] == B.shape[:-2]):
        return A @ B
    if (through_onednn := _product_through_onednn()) is None:
        return A @ B
    if single:
        return through_onednn(A.reshape(m, k), B.reshape(k, n)).view(*batch, m, n)
    y = A.new_empty(*batch, m, n)
    for left, right, out in zip(A.reshape(-1, m, k), B.reshape(-1, k, n), y.view(-1, m, n), strict=True):
        out.copy_(through_onednn(left, right))
    return y


@memoized(1)
def _product_through_onednn() -> Callable[[Tensor, Tensor], Tensor] | None:
    """Return A, B -> A B for float32 matrices, or None: torch's operator is private, so it has to show that it works.

    Builds without oneDNN have none, as those for some processors, and another version may call it otherwise. The same
    machine gives the same answer, so that a resumed run repeats its bits.
    """

    def through_onednn(A: Tensor, B: Tensor) -> Tensor:
        B = B if B.is_contiguous() or B.mT.is_contiguous() else B.contiguous()  # otherwise it is very slow
        y: Tensor = torch.ops.mkldnn._linear_pointwise(A, B.mT, None, "none", [], "")
        return y

    if has_fast_blas():
        return None
    A = torch.arange(12, dtype=torch.float32, device="cpu").view(3, 4)
    try:
        works = torch.backends.mkldnn.is_available() and torch.equal(through_onednn(A, A.mT), A @ A.mT)
    except (AttributeError, RuntimeError, TypeError):  # NotImplementedError is a RuntimeError
        return None
    return through_onednn if works else None


@memoized(1)
def has_fast_blas() -> bool:
    """Whether products go through MKL on a processor of Intel's, all of whose vector units it uses."""
    try:
        described = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux; Windows tells Python
        described = platform.processor()
    return torch.backends.mkl.is_available() and "GenuineIntel" in described


@contextmanager
def float32_products(*, tf32: bool) -> Iterator[None]:
    """Let float32 products use TF32 inside, or not; what was set before returns afterwards."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
