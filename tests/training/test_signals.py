"""SIGINT and SIGTERM to a training process: it saves, says how to resume, and exits with the shell's code."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bronet.run.folder import open_run

LONG = 100_000
SCRIPT = f"""
import sys
import torch
from bronet.recipe import named_recipe, override
from bronet.training import Interrupted, train_recipe

torch.set_num_threads(1)
small = ["model.width=8", "model.depth=1", "model.dense_depth=1", "model.dense_width=16", "data.held_out=1097"]
recipe = override(named_recipe("digits/quickstart"), [*small, "train.epochs={LONG}", "train.checkpoint_every={LONG}"])
try:
    train_recipe(recipe, sys.argv[1])
except Interrupted as stopped:
    print(stopped)
    sys.exit(stopped.exit_code)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_resume(tmp_path: Path, number: signal.Signals, code: int) -> None:
    folder = tmp_path / "a run"
    with subprocess.Popen(
        [sys.executable, "-u", "-c", SCRIPT, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(f"epoch 1/{LONG}")
        assert not (folder / "checkpoint.safetensors").exists()
        process.send_signal(number)
        last = process.stdout.read().splitlines()[-1]
        assert process.stderr.read() == ""
    assert process.returncode == code
    assert last.startswith("stopped after step ")
    assert last.endswith(f"state saved; resume with: bronet train --resume '{folder}'")
    run = open_run(folder)
    assert run.checkpoint.exists()
    assert not run.weights.exists()
