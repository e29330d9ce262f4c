"""Ctrl-C and SIGTERM to the real program: what is saved, what is said, what a script sees."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from safetensors.torch import load_file
from torch.testing import assert_close

BRONET = [sys.executable, "-u", "-m", "bronet"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
EPOCHS = 40
SMALL = ["model.width=8", "model.depth=1", "model.dense_depth=1", "model.dense_width=16", "data.held_out=1097"]
TIME = [f"train.epochs={EPOCHS}", f"train.checkpoint_every={EPOCHS}"]
SETTINGS = [word for value in [*SMALL, *TIME] for word in ("--set", value)]


def command(folder: Path) -> list[str]:
    return [*BRONET, "train", "digits/quickstart", "--device", "cpu", "--out", str(folder), *SETTINGS]


def stop(folder: Path, number: signal.Signals) -> tuple[int, str]:
    """Train, send a signal after the first epoch, and return the exit status and the line on stderr."""
    with subprocess.Popen(
        command(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(f"epoch 1/{EPOCHS}")
        process.send_signal(number)
        process.stdout.read()
        (line,) = process.stderr.read().splitlines()
    return process.returncode, line


def test_ctrl_c_saves_and_resumes_to_the_weights_of_an_unbroken_run(tmp_path: Path) -> None:
    folder, unbroken = tmp_path / "broken", tmp_path / "unbroken"
    status, line = stop(folder, signal.SIGINT)
    assert status == 130
    assert not (folder / "model.safetensors").exists()
    words = line.partition("resume with: bronet ")[2].split()
    assert words == ["train", "--resume", str(folder)]
    for rest in ([*BRONET, *words, "--device", "cpu"], command(unbroken)):
        subprocess.run(rest, check=True, capture_output=True, env=ENVIRONMENT)
    resumed, straight = (load_file(path / "model.safetensors") for path in (folder, unbroken))
    assert_close(resumed, straight, rtol=0, atol=0)


def test_sigterm_saves_and_tells_its_own_status(tmp_path: Path) -> None:
    status, line = stop(tmp_path / "run", signal.SIGTERM)
    assert status == 143
    assert "state saved" in line
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_ctrl_c_outside_training_is_one_line(tmp_path: Path) -> None:
    pipe = tmp_path / "recipe.yaml"
    os.mkfifo(pipe)  # the program waits in it for a recipe that never comes
    with subprocess.Popen([*BRONET, "train", str(pipe)], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        with pipe.open("w"):  # opens when the program has begun to read
            process.send_signal(signal.SIGINT)
            assert process.stderr.read() == "interrupted\n"
    assert process.returncode == 130
