"""A command that is killed (SIGKILL) at a random moment goes on, and ends with the bytes of one that was left alone."""

import random
import shutil
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from forks import KILLED, Server
from ledger import Tell, left_behind
from torchrun import settings

EPOCHS = 6
SHORT = settings(f"train.epochs={EPOCHS}", "train.keep_checkpoints=3")
TRAIN = ("train", "digits/quickstart", "--device", "cpu", *SHORT)
CERTIFY = ("certify", "run", "--device", "cpu", "--limit", 300, "--targeted")
ATTACK = ("attack", "run", "--attack", "pgd", "--steps", 4, "--restarts", 1, "--batch-size", 20, "--limit", 200)
COMMANDS = {
    "certify": (CERTIFY, ("certificate.csv", "targeted.csv"), 40),
    "attack": (ATTACK, ("attack-pgd-l2-36_255.csv",), 30),
    "report": (("report", "run"), ("report/summary.csv", "report/curve.png"), 15),
}
"""Words, files to compare, and how often each is killed."""


def result(run: Path) -> tuple[bytes, dict[str, bytes]]:
    """Return the weights, and the tensors of the training state: beside them it says how long the run took."""
    state = load_file(run / "checkpoint.safetensors")
    return (run / "model.safetensors").read_bytes(), {name: t.numpy().tobytes() for name, t in state.items()}


@pytest.mark.parametrize("tries", [1, pytest.param(120, marks=pytest.mark.slow)])
def test_a_training_that_is_killed_ends_with_the_same_bits(
    tries: int, server: Server, tmp_path: Path, row: Tell
) -> None:
    began = time.monotonic()
    assert server.run(*TRAIN, "--out", "whole", cwd=tmp_path).status == 0
    lasts, whole = time.monotonic() - began, result(tmp_path / "whole")
    draw, kills, lost, run = random.Random(tries), 0, list[str](), tmp_path / "run"
    while kills < tries:
        status = KILLED
        while status == KILLED:
            begun = (run / "recipe.yaml").exists()
            words = ("train", run.name, "--device", "cpu", "--resume") if begun else (*TRAIN, "--out", run.name)
            after = draw.uniform(0, 0.7 * lasts) if kills < tries else None
            done = server.start(words, cwd=tmp_path).end(after=after)
            status = done.status
            kills += status == KILLED
        if status or result(run) != whole:
            lost.append(f"after {kills} kills: status {status}, {done.stderr[-300:]}")
        if left_behind(run) or len((run / "log.jsonl").read_text().splitlines()) != EPOCHS:
            lost.append(f"after {kills} kills: {left_behind(run)}")
        shutil.rmtree(run)
    row("`bronet train` killed (SIGKILL), then resumed; weights and training state compared bit for bit", kills, lost)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(COMMANDS))
def test_a_command_that_is_killed_is_repeated(
    name: str, server: Server, trained: Path, tmp_path: Path, row: Tell
) -> None:
    words, files, tries = COMMANDS[name]
    prepared = shutil.copytree(trained, tmp_path / "prepared" / "run")
    if name == "report":
        assert server.run(*CERTIFY, cwd=prepared.parent).status == 0
    whole, place = tmp_path / "whole", tmp_path / "killed"
    shutil.copytree(prepared, whole / "run")
    began = time.monotonic()
    assert server.run(*words, cwd=whole).status == 0
    lasts = time.monotonic() - began
    wanted = [(whole / "run" / file).read_bytes() for file in files]
    draw, kills, lost = random.Random(tries), 0, list[str]()
    while kills < tries:
        shutil.copytree(prepared, place / "run")
        status = KILLED
        while status == KILLED:
            done = server.start(words, cwd=place).end(after=draw.uniform(0, lasts) if kills < tries else None)
            status = done.status
            kills += status == KILLED
        if status or [(place / "run" / file).read_bytes() for file in files] != wanted or left_behind(place):
            lost.append(f"after {kills} kills: status {status}, {done.stderr[-300:]}, {left_behind(place)}")
        shutil.rmtree(place)
    row(f"`bronet {name}` killed, then repeated; what it writes compared byte for byte", kills, lost)
