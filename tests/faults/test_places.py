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

from bronet.certificates.run import certify_run
from forks import BACKWARDS, KILLED, Server
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
        "attack run --attack pgd --limit 5", "export run", "export run --format torch-export --out new.pt2",
        "certify bronet-digits/digits", "quickstart --out new",
    )  # fmt: skip
    certified = shutil.copytree(trained, tmp_path / "certified")
    certify_run(certified, limit=5)
    for command in commands:
        (tmp_path / "disk").mkdir(exist_ok=True)
        script = f"cp -r {certified} run && mount -o remount,ro . && bronet {command}"
        done = mounted(tmp_path / "disk", "-o size=100m", script)
        if done.returncode != 2 or len(done.stderr.splitlines()) != 1 or "Read-only" not in done.stderr:
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


@pytest.mark.parametrize("tries", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_ctrl_c_once_or_more_often_loses_nothing(tries: int, server: Server, tmp_path: Path, row: Tell) -> None:
    """Each press is one line at most and the shell's status, wherever it comes."""
    lost, draw = list[str](), random.Random(tries)
    began = time.monotonic()
    assert server.run(*TRAIN, *SHORT, "--out", "whole", cwd=tmp_path).status == 0
    lasts, whole = time.monotonic() - began, (tmp_path / "whole/model.safetensors").read_bytes()
    for number in range(tries):
        command = server.start((*TRAIN, *SHORT, "--out", "run"), cwd=tmp_path)
        time.sleep(draw.random() * lasts)
        for _ in range(draw.choice([1, 2, 2, 3])):
            os.kill(command.pid, signal.SIGINT)
            time.sleep(draw.choice([0.0, 0.001, 0.01, 0.1]) * draw.random())
        done = command.end()
        if done.status not in (0, 130) or len(done.stderr.splitlines()) != (done.status == 130):
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


@pytest.mark.parametrize("tries", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_a_clock_that_goes_backwards_changes_nothing(tries: int, server: Server, tmp_path: Path, row: Tell) -> None:
    """Every look at the clock shows an earlier hour, and older states seem newer: what counts is their steps."""
    lost, draw = list[str](), random.Random(tries)
    words = (*TRAIN, *settings("train.epochs=6", "train.keep_checkpoints=4"))
    certify, backwards = ("certify", "run", "--device", "cpu"), {BACKWARDS: "1"}
    whole, place = tmp_path / "whole", tmp_path / "again"
    whole.mkdir()
    began = time.monotonic()
    assert server.run(*words, "--out", "run", cwd=whole).status == 0
    lasts = time.monotonic() - began
    assert server.run(*certify, cwd=whole).status == 0
    for number in range(tries):
        place.mkdir()
        run = place / "run"
        first = server.start((*words, "--out", "run"), cwd=place, environment=backwards)
        status = first.end(after=draw.uniform(0.3, 1) * lasts).status
        for path in run.glob("*"):
            moment = time.time() + draw.uniform(-1, 1) * 10**9
            os.utime(path, (moment, moment))
        begun = (run / "recipe.yaml").exists()
        words_again = ("train", "run", "--resume", "--device", "cpu") if begun else (*words, "--out", "run")
        ends = [server.run(*command, cwd=place, environment=backwards) for command in (words_again, certify)]
        same = all(
            (run / name).is_file() and (run / name).read_bytes() == (whole / "run" / name).read_bytes()
            for name in ("model.safetensors", "certificate.csv")
        )
        if status not in (0, KILLED) or any(end.status for end in ends) or not same or left_behind(run):
            lost.append(f"try {number}: {status}, {ends}, {left_behind(run)}")
        shutil.rmtree(place)
    row("training killed and resumed, then certified, under a clock that goes backwards; files compared", tries, lost)
