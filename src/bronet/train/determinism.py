"""Bit-for-bit repeatable training on one GPU, at some cost in speed. On a CPU it always is.

The same recipe then gives the same weights on the same kind of GPU with the same software. Another GPU or version may
differ, and so may another number of processes.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

WORKSPACE_VARIABLE, WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
"""cuBLAS repeats its sums only with a workspace of fixed size; it reads this when CUDA starts."""


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Inside, allow only operations that repeat their bits; one that cannot raises an error."""
    if not wanted:
        yield
        return
    os.environ.setdefault(WORKSPACE_VARIABLE, WORKSPACE)
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]
