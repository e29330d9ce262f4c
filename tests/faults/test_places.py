"""Places that fail: a full disk, a read-only folder, another trainer, two Ctrl-C, a clock that goes backwards.

Small file systems are mounted in a namespace of their own, as a user who is not root could; where the system forbids
that, those tests skip themselves.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forks import KILLED, Server
from ledger import Tell, left_behind
from torchrun import settings

MOUNT = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
SHORT = settings("train.epochs=6")
TRAIN = ("train", "digits/quickstart", "--device", "cpu")
can_mount = pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run([*MOUNT, "mount -t tmpfs none /mnt"], capture_output=True, check=False).returncode != 0,
    reason="needs a mount namespace of its own",
)


def mounted(folder: Path, options: str, script: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script with a small file system at `folder`; `bronet` is the program."""
    bronet = f"{sys.executable} -m bronet"
    words = f'mount -t tmpfs {options} none {folder} && cd {folder} && bronet() {{ {bronet} "$@"; }}; {script}'
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([*MOUNT, words], capture_output=True, text=True, env=environment, timeout=300, check=False)


@can_mount
@pytest.mark.slow
def test_a_full_disk_loses_nothing(tmp_path: Path, row: Tell) -> None:
    """Train on a disk of so many KiB, then make room and go on: the weights are those of a run with room enough."""
    lost, sizes = list[str](), (8, 64, 96, 128, 192)
    rest, train = " ".join(SHORT), " ".join((*TRAIN, *SHORT))
    for size in sizes:
        script = f"""
            bronet {train} --out whole >/dev/null || exit 9; cp whole/model.safetensors {tmp_path}/whole; rm -r whole
            mount -o remount,size={size}k .
            bronet {train} --out run >/dev/null 2>{tmp_path}/error; echo $?; find . -name '.*.tmp'
            mount -o remount,size=100m .
            more="digits/quickstart --out run {rest}"; [ -e run/recipe.yaml ] && more="--resume run"
            bronet train $more --device cpu >/dev/null 2>&1 || exit 8
            cmp run/model.safetensors {tmp_path}/whole || exit 7
        """
        (tmp_path / "disk").mkdir(exist_ok=True)
        done = mounted(tmp_path / "disk", "-o size=100m", script)
        first, error = done.stdout.split(), (tmp_path / "error").read_text()
        if done.returncode or first not in (["0"], ["2"]) or (first == ["2"]) != (len(error.splitlines()) == 1):
            lost.append(f"{size} KiB: {done.returncode}, {done.stdout}, {error[-500:]}, {done.stderr[-500:]}")
    row("disk full while training, then room made and the run resumed; weights compared", len(sizes), lost)


@can_mount
@pytest.mark.slow
def test_a_read_only_folder_is_refused_in_one_line(trained: Path, tmp_path: Path, row: Tell) -> None:
    lost, commands = list[str](), (
        "train digits/quickstart --out new", "train --resume run", "certify run --limit 5", "report run",
        "attack run --attack pgd --limit 5", "export run", "round run --out new",
        "bench digits/quickstart --out new.csv", "quickstart --out new",
    )  # fmt: skip
    for command in commands:
        (tmp_path / "disk").mkdir(exist_ok=True)
        script = f"cp -r {trained} run && mount -o remount,ro . && bronet {command}"
        done = mounted(tmp_path / "disk", "-o size=100m", script)
        if done.returncode != 2 or len(done.stderr.splitlines()) != 1:
            lost.append(f"{command}: {done.returncode}, {done.stderr[-500:]}")
    row("command in a read-only folder; refused in one line", len(commands), lost)


@pytest.mark.parametrize("tries", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_of_two_trainers_in_one_folder_one_is_refused(tries: int, server: Server, tmp_path: Path, row: Tell) -> None:
    lost, draw = list[str](), random.Random(tries)
    assert server.run(*TRAIN, *SHORT, "--out", "whole", cwd=tmp_path).status == 0
    for number in range(tries):
        first = server.start((*TRAIN, *SHORT, "--out", "run"), cwd=tmp_path)
        time.sleep(draw.random() * 0.3)
        option = draw.choice(["--overwrite", "--resume"])
        second = server.start((*TRAIN, *SHORT, "--out", "run", option), cwd=tmp_path)
        ends = [command.end() for command in (first, second)]
        if 0 not in [end.status for end in ends] or any(end.status not in (0, 2) for end in ends):
            lost.append(f"try {number}: {ends}")
        elif (tmp_path / "run/model.safetensors").read_bytes() != (tmp_path / "whole/model.safetensors").read_bytes():
            lost.append(f"try {number}: other weights, {ends}")
        shutil.rmtree(tmp_path / "run")
    row("two trainings started in one folder; one is refused or comes later, the weights are right", tries, lost)


@pytest.mark.slow
def test_ctrl_c_once_or_twice_loses_nothing(server: Server, tmp_path: Path, row: Tell) -> None:
    lost, draw, tries = list[str](), random.Random(0), 20
    assert server.run(*TRAIN, *SHORT, "--out", "whole", cwd=tmp_path).status == 0
    whole = (tmp_path / "whole/model.safetensors").read_bytes()
    for number in range(tries):
        command = server.start((*TRAIN, *SHORT, "--out", "run"), cwd=tmp_path)
        time.sleep(draw.random() * 1.5)
        presses = draw.choice([1, 2, 2, 3])
        for _ in range(presses):
            os.kill(command.pid, signal.SIGINT)
            time.sleep(draw.random() * 0.01)
        done = command.end()
        # Before the program begins and after it has ended, Ctrl-C is the interpreter's; the second one comes anywhere.
        if presses == 1 and (done.status not in (0, 130, -signal.SIGINT) or "bronet/cli" in done.stderr):
            lost.append(f"try {number}: {done}")
        begun = (tmp_path / "run/recipe.yaml").exists()
        words = ("train", "run", "--resume", "--device", "cpu") if begun else (*TRAIN, *SHORT, "--out", "run")
        again = server.run(*words, cwd=tmp_path)
        if again.status or left_behind(tmp_path / "run"):
            lost.append(f"try {number}: {again}, {left_behind(tmp_path / 'run')}")
        elif (tmp_path / "run/model.safetensors").read_bytes() != whole:
            lost.append(f"try {number}: other weights")
        shutil.rmtree(tmp_path / "run")
    row("Ctrl-C once, twice or three times at any moment, then resumed; weights compared", tries, lost)


@pytest.mark.slow
def test_a_clock_that_goes_backwards_changes_nothing(server: Server, tmp_path: Path, row: Tell) -> None:
    """Files seem to come from the future, and older states to be newer: what is resumed follows from their steps."""
    lost, draw, tries = list[str](), random.Random(0), 10
    words = (*TRAIN, *settings("train.epochs=6", "train.keep_checkpoints=4"))
    assert server.run(*words, "--out", "whole", cwd=tmp_path).status == 0
    whole = (tmp_path / "whole/model.safetensors").read_bytes()
    for number in range(tries):
        status = server.start((*words, "--out", "run"), cwd=tmp_path).end(after=draw.uniform(0.5, 1.2)).status
        for path in (tmp_path / "run").glob("*"):
            moment = time.time() + draw.uniform(-1, 1) * 10**9
            os.utime(path, (moment, moment))
        begun = (tmp_path / "run/recipe.yaml").exists()
        words_again = ("train", "run", "--resume", "--device", "cpu") if begun else (*words, "--out", "run")
        again = server.run(*words_again, cwd=tmp_path)
        if status not in (0, KILLED) or again.status or (tmp_path / "run/model.safetensors").read_bytes() != whole:
            lost.append(f"try {number}: {status}, {again}")
        shutil.rmtree(tmp_path / "run")
    row("training killed, the times of its files set to random years, resumed; weights compared", tries, lost)
