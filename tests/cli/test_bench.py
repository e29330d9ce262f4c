"""`bronet bench`: what it times and how it refuses."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from bronet.cli import app
from bronet.cli.exit_status import ExitStatus
from bronet.recipe import named_recipe, override, to_text

QUICK = "digits/quickstart"
pytestmark = pytest.mark.usefixtures("one_thread")
terminal = CliRunner()


def timed(*words: str) -> dict[str, str]:
    """Return what the command prints: what was timed and where, and the median times."""
    result = terminal.invoke(app, ["bench", *words, "--repeats", "1", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    return {line[:13].strip(): line[13:].strip() for line in result.stdout.splitlines()}


def test_a_named_recipe_is_timed() -> None:
    facts = timed(QUICK, "--set", "train.batch_size=2")
    assert facts["recipe"] == f"{QUICK}, 1 x 8 x 8, batch 2, float32"
    for what in ("training step", "inference"):
        milliseconds, unit = facts[what].split()
        assert float(milliseconds) > 0
        assert unit == "ms"


def test_a_file_is_timed_with_settings_changed(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(to_text(override(named_recipe(QUICK), ["name=mine", "train.precision=bf16"])))
    facts = timed(str(file), "--set", "model.width=6", "--set", "train.batch_size=3")
    assert facts["recipe"] == "mine, 1 x 8 x 8, batch 3, float32"


def test_an_unknown_recipe_is_refused_as_training_refuses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bench = terminal.invoke(app, ["bench", "digits/quikstart"])
    train = terminal.invoke(app, ["train", "digits/quikstart"])
    assert bench.exit_code == train.exit_code == ExitStatus.USER_ERROR
    assert bench.output == train.output
    assert len(bench.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
