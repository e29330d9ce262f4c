"""Shared set-up: shapes in annotations are checked while testing, if beartype is installed."""

import importlib.util
import os
from collections.abc import Iterator

# Some virtual machines announce half-precision matrix instructions that they then refuse to execute, which kills the
# process. Tests of half precision are about our code, so they stay with the older instructions.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import pytest
import torch

if importlib.util.find_spec("beartype") is not None:
    from jaxtyping import install_import_hook

    install_import_hook("bronet", "checked.checked")

torch.set_num_threads(2)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Thousands of tiny operations are faster without threads that wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
