"""Shared set-up: shapes in annotations are checked while testing, if beartype is installed."""

import importlib.util
import os

# Some virtual machines announce half-precision matrix instructions that they then refuse to execute, which kills the
# process. Tests of half precision are about our code, so they stay with the older instructions.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import torch

if importlib.util.find_spec("beartype") is not None:
    from jaxtyping import install_import_hook

    install_import_hook("bronet", "checked.checked")

torch.set_num_threads(2)
