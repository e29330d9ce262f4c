"""`bronet --layers FILE`: layers of one's own, made known before a command reads a recipe.

The only way in which the command line runs code of the user, and only what the user names: recipes, checkpoints and
certificates never name a file to run.
"""

import importlib.util
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from bronet.errors import BronetError

_run: list[Path] = []


def layer_files() -> list[Path]:
    """Return the files that this command was given, for the commands that it recommends."""
    return list(_run)


def run_layer_files(paths: Sequence[Path]) -> None:
    """Run the files that a command names, in order."""
    _run[:] = paths
    for path in paths:
        _run_layer_file(path)


def _run_layer_file(path: Path) -> None:
    """Run a Python file as a module that hides no other, whatever its name; where it fails, one line says where."""
    if path.suffix != ".py" or not path.is_file():
        raise BronetError(f"--layers must be a Python file that registers layers, got {path}")
    name = f"bronet_layers_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BronetError:
        raise
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == spec.origin]
        where = f" in line {lines[-1]}" if lines else ""
        raise BronetError(f"--layers {path} must run, but failed{where}: {type(error).__name__}: {error}") from None
