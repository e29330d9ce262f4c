"""Runs of the real program in several processes, on a CPU."""

import os
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from bronet.recipe import named_recipe, override
from bronet.training import train_recipe

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
SMALL = [
    "model.width=8",
    "model.depth=2",
    "model.dense_depth=1",
    "model.dense_width=16",
    "data.held_out=1097",
    "train.batch_size=40",
]
STEPS_PER_EPOCH = 5
SECONDS = 120


def settings(*values: str) -> list[str]:
    return [word for value in (*SMALL, *values) for word in ("--set", value)]


def train_words(folder: Path, *values: str) -> list[str]:
    return ["-m", "bronet", "train", "digits/quickstart", "--device", "cpu", "--out", str(folder), *settings(*values)]


def alone(folder: Path, *values: str) -> None:
    """Train in this process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    train_recipe(override(named_recipe("digits/quickstart"), [*SMALL, *values]), folder, progress=False)
    torch.set_num_threads(threads)


def torchrun_words(processes: int, *options: str) -> list[str]:
    # A port of one's own, so that tests can run side by side.
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", *options]


def together(folder: Path, *values: str, flags: tuple[str, ...] = (), processes: int = 2) -> str:
    """Train in several processes and return what they printed."""
    command = [*torchrun_words(processes), *train_words(folder, *values), *flags]
    done = subprocess.run(command, capture_output=True, env=ENVIRONMENT, timeout=SECONDS, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def largest_difference(first: Path, second: Path, name: str = "model.safetensors") -> float:
    """Return the largest difference of two runs' weights, relative to the largest weight of each tensor."""
    left, right = load_file(first / name), load_file(second / name)
    assert left.keys() == right.keys()
    differences = [
        (left[key] - right[key]).abs().max() / left[key].abs().max().clamp_min(1e-6)
        for key in left
        if not key.startswith("optimizer.") and key != "tally"
    ]
    return float(torch.stack(differences).max())


def dealt_out(folder: Path, *words: str, processes: int = 2, restarts: int = 0) -> subprocess.Popen[str]:
    """Start a command in several processes, in a folder."""
    command = [*torchrun_words(processes, f"--max-restarts={restarts}"), "-m", "bronet", *words]
    return subprocess.Popen(
        command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
