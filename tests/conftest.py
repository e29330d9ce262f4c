"""Shared set-up: shapes in annotations are checked while testing, if beartype is installed."""

import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path

# Some virtual machines announce half-precision matrix instructions that they then refuse to execute, which kills the
# process. Tests of half precision are about our code, so they stay with the older instructions.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
# torch reads this once, at the first product on a GPU: a test of repeatable bits may come later in the same process.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# Where tests run side by side, each has one core, and so have the programs that it starts. Not set in the process that
# only hands them out: the others would inherit what is meant for it.
os.environ.update({"OMP_NUM_THREADS": "1"} if "PYTEST_XDIST_WORKER" in os.environ else {})

import pytest
import torch

if importlib.util.find_spec("beartype") is not None:
    from jaxtyping import install_import_hook

    install_import_hook("bronet", "checked.checked")

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))

# A shell starts what runs in its background with Ctrl-C ignored, and programs that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m gpu`, leave out files without such tests: a machine with a GPU may lack packages that they import."""
    if config.getoption("-m") != "gpu" or collection_path.suffix != ".py":
        return None
    return "mark.gpu" not in collection_path.read_text(encoding="utf-8") or None


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Thousands of tiny operations are faster without threads that wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def wheel_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of an environment outside the tree, in which bronet was installed from its wheel."""
    from packaged import ROOT, build, install

    folder = tmp_path_factory.mktemp("installed")
    build(ROOT, folder, "wheel")
    return install(next(folder.glob("*.whl")), folder / "venv")
