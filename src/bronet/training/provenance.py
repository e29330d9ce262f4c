"""How a run was made: command, commit, seed, device and versions, for its record."""

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from bronet.__about__ import __version__
from bronet.files import Json
from bronet.recipe.schema import Recipe

GIT_SECONDS = 5


def describe_run(recipe: Recipe, *, device: torch.device, command: str | None) -> Json:
    """Return what a record says besides times: command, commit, seed, device and versions."""
    numpy_and_torch = {"torch": torch.__version__, "numpy": np.__version__}
    return {
        "recipe": recipe.name,
        "command": command or shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": source_commit(),
        "seed": recipe.train.seed,
        "precision": recipe.train.precision,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU",
        "threads": torch.get_num_threads(),
        "versions": {"bronet": __version__, "python": platform.python_version()} | numpy_and_torch,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def source_commit() -> str | None:
    """Return the git commit this package runs from, with "+changes" if it was edited; None when unknown.

    An installed copy has none, even inside another repository: the source file must be tracked. BRONET_COMMIT may tell
    it to a copy of the source without its repository, as on a cluster.
    """
    here = Path(__file__)
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return os.environ.get("BRONET_COMMIT")
    commit = _git(here.parent, "rev-parse", "HEAD")
    changes = _git(here.parent, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}+changes" if commit and changes else commit


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=GIT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
