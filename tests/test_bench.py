"""`bronet bench`: what it times, what it writes and how it refuses."""

import csv
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from bronet.bench import INFERENCE, TRAINING, time_recipe
from bronet.cli import app
from bronet.cli.exit_status import ExitStatus
from bronet.recipe import named_recipe, override, to_text

QUICK = "digits/quickstart"
pytestmark = pytest.mark.usefixtures("one_thread")
terminal = CliRunner()


def test_a_named_recipe_is_timed(tmp_path: Path) -> None:
    out = tmp_path / "step.csv"
    words = ["bench", QUICK, "--batch", "2", "--repeats", "1", "--device", "cpu", "--out", str(out)]
    result = terminal.invoke(app, words)
    assert result.exit_code == 0, result.output
    with out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["subject"].rpartition(", ")[2] for row in rows] == [TRAINING, INFERENCE]
    for row in rows:
        assert row["subject"].startswith(QUICK)
        assert (row["shape"], row["dtype"], row["repeats"]) == ("1 x 8 x 8, batch 2", "float32", "1")
        assert f"{row['subject']}, {row['shape']}" in result.stdout


def test_a_file_is_timed_with_settings_changed(tmp_path: Path) -> None:
    file, out = tmp_path / "mine.yaml", tmp_path / "step.csv"
    file.write_text(to_text(override(named_recipe(QUICK), ["name=mine"])))
    words = [str(file), "--set", "model.width=6", "--set", "train.batch_size=3", "--repeats", "1"]
    result = terminal.invoke(app, ["bench", *words, "--device", "cpu", "--out", str(out)])
    assert result.exit_code == 0, result.output
    with out.open(encoding="utf-8", newline="") as file_of_rows:
        first, _ = csv.DictReader(file_of_rows)
    assert first["subject"] == "mine, model.width=6, train.batch_size=3, training step"
    assert first["shape"] == "1 x 8 x 8, batch 3"


def test_an_unknown_recipe_is_refused_as_training_refuses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bench = terminal.invoke(app, ["bench", "digits/quikstart", "--out", "step.csv"])
    train = terminal.invoke(app, ["train", "digits/quikstart"])
    assert bench.exit_code == train.exit_code == ExitStatus.USER_ERROR
    assert bench.output == train.output
    assert len(bench.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_in_bf16_is_timed_in_float32_on_a_cpu() -> None:
    recipe = override(named_recipe(QUICK), ["train.precision=bf16", "train.batch_size=2"])
    assert [row.dtype for _, row in time_recipe(recipe, torch.device("cpu"), repeats=1)] == ["float32", "float32"]
