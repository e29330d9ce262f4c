"""A process killed at any moment loses nothing: torchrun starts again and the run ends with the same weights."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from torchrun import ENVIRONMENT, largest_difference, together, torchrun_words, train_words

PATIENCE = 240.0


def children(parent: int) -> list[int]:
    """Return the processes that `parent` started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent:
                found.append(int(entry.name))
    return sorted(found)


def epochs_done(folder: Path) -> int:
    log = folder / "log.jsonl"
    return len(log.read_text().splitlines()) if log.exists() else 0


def train_with_kills(folder: Path, kills: int, *, epochs: int) -> int:
    """Train in two processes, kill one of them at random moments, and return how many kills hit."""
    draw = random.Random(kills)
    moments = sorted(draw.sample(range(2, epochs - 8), kills))
    command = [*torchrun_words(2, f"--max-restarts={kills}"), *train_words(folder, f"train.epochs={epochs}")]
    hits, seen, errors = 0, 0, (folder.parent / "stderr.txt").open("w")
    with errors, subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=errors) as agent:
        deadline = time.monotonic() + PATIENCE
        while agent.poll() is None:
            if time.monotonic() > deadline:
                agent.terminate()
                pytest.fail("the run hangs")
            workers = children(agent.pid)
            if hits < kills and len(workers) >= 2 and epochs_done(folder) >= max(moments[hits], seen + 1):
                time.sleep(draw.random() * 0.1)  # anywhere within a step, an epoch's end or a checkpoint
                os.kill(draw.choice(workers[-2:]), signal.SIGKILL)
                hits += 1
                seen = epochs_done(folder)
                deadline = time.monotonic() + PATIENCE
                while set(children(agent.pid)) & set(workers) and agent.poll() is None:
                    time.sleep(0.02)
            time.sleep(0.02)
    assert agent.returncode == 0, (folder.parent / "stderr.txt").read_text()[-5000:]
    return hits


def lost_or_changed(tmp_path: Path, kills: int, epochs: int) -> tuple[int, bool]:
    """Return the number of kills that hit, and whether the run ended with other bits than an undisturbed one."""
    together(tmp_path / "undisturbed", f"train.epochs={epochs}")
    hits = train_with_kills(tmp_path / "killed", kills, epochs=epochs)
    assert epochs_done(tmp_path / "killed") == epochs
    same = (tmp_path / "killed" / "model.safetensors").read_bytes() == (
        tmp_path / "undisturbed" / "model.safetensors"
    ).read_bytes()
    assert largest_difference(tmp_path / "killed", tmp_path / "undisturbed") == 0
    return hits, not same


@pytest.mark.parametrize(("kills", "epochs"), [(1, 16), pytest.param(10, 40, marks=pytest.mark.slow)])
def test_killed_processes_lose_nothing(tmp_path: Path, kills: int, epochs: int) -> None:
    hits, changed = lost_or_changed(tmp_path, kills, epochs)
    assert (hits, changed) == (kills, False)
    if folder := os.environ.get("BRONET_KILL_RECORD"):
        record = {"kills": hits, "lost_runs": int(changed), "processes": 2, "epochs": epochs}
        Path(folder).write_text(json.dumps(record, indent=2) + "\n")
