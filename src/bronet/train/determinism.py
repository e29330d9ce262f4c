"""Bit-for-bit repeatable training on one GPU, at some cost in speed. On a CPU it always is.

The same recipe then gives the same weights on the same kind of GPU with the same software. Another GPU or version may
differ, and so may another number of processes.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from bronet.errors import BronetError

WORKSPACE_VARIABLE, WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
FIXED_WORKSPACES = (WORKSPACE, ":16:8")
"""cuBLAS repeats its sums only with a workspace of fixed size; torch looks once, at its first product on a GPU."""


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Inside, allow only operations that repeat their bits; one that cannot raises an error.

    CUDA must not have started without a fixed workspace: it is too late then, which is a `BronetError`.
    """
    if not wanted:
        yield
        return
    found = os.environ.get(WORKSPACE_VARIABLE)
    if found not in FIXED_WORKSPACES and torch.cuda.is_initialized():
        raise BronetError(
            f"{WORKSPACE_VARIABLE} must be {WORKSPACE} before CUDA starts for a deterministic run, got {found}; "
            "set it in the environment of the program"
        )
    os.environ[WORKSPACE_VARIABLE] = found if found in FIXED_WORKSPACES else WORKSPACE
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]
