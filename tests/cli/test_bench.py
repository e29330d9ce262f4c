"""`bronet bench`: what it times and how it refuses."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from bronet.bench.comparison import ComparedRow, plain_network
from bronet.cli import ExitStatus, app
from bronet.layers import LipschitzLayer, OrthogonalHead
from bronet.models import build_model
from bronet.recipe import named_recipe, override, to_text
from bronet.records import read_rows

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


def test_the_table_sets_certificates_beside_plain_torch_and_keeps_its_rows(tmp_path: Path) -> None:
    words = ["bench", "--only", "LipConvNet-5-32, evaluation, batch 1", "--seconds", "0", "--device", "cpu"]
    result = terminal.invoke(app, [*words, "--out", str(tmp_path / "rows.csv")])
    assert result.exit_code == 0, result.output
    rows = read_rows(ComparedRow, tmp_path / "rows.csv", advice="")
    assert [row.contender for row in rows] == ["bronet", "plain"]
    assert {row.work for row in rows} == {"LipConvNet-5-32, evaluation, batch 1"}
    assert rows[0].ratio == 1
    assert all(row.turns == 5 and row.ms > 0 and row.processor_ms > 0 and row.ratio > 0 for row in rows)
    assert f"{rows[1].ratio:.2f} of ours" in result.stdout


def test_a_table_without_lines_is_refused(tmp_path: Path) -> None:
    result = terminal.invoke(app, ["bench", "--only", "BRONet-XXL", "--out", str(tmp_path / "rows.csv")])
    assert result.exit_code == ExitStatus.USER_ERROR
    assert "BRONet-XXL" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_plain_network_has_the_shapes_of_ours() -> None:
    for name in ("cifar10/lipconvnet-5-32", "cifar10/bronet-s-fast"):
        recipe = named_recipe(name)
        model = build_model(recipe.model, recipe.data.spec())
        plain = plain_network(model, recipe.data.spec().shape)
        kernels = [p for part in plain for p in part.parameters() if p.ndim > 1]
        ours = [m for m in model.modules() if isinstance(m, LipschitzLayer) and hasattr(m, "weight")]
        assert len(kernels) == len([m for m in ours if not isinstance(m, OrthogonalHead)])
        assert plain(torch.zeros(2, *recipe.data.spec().shape)).shape == (2, 10)


def test_an_unknown_recipe_is_refused_as_training_refuses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bench = terminal.invoke(app, ["bench", "digits/quikstart"])
    train = terminal.invoke(app, ["train", "digits/quikstart"])
    assert bench.exit_code == train.exit_code == ExitStatus.USER_ERROR
    assert bench.output == train.output
    assert len(bench.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
