"""The commands that compare layers: what they write and how they refuse."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from bronet.certificates.run import certify_run
from bronet.cli import app as bronet
from bronet.layers.rivals.fourier import LOTConv2d
from bronet.models import build_model
from bronet.recipe import named_recipe
from bronet.recipe.architecture import StackArchitecture
from bronet.recipe.schema import dataset_spec
from bronet.run.folder import create_run
from bronet.run.weights import save_weights
from lab.commands import app


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.output


def test_lot_condition_writes_rows_and_figures(tmp_path: Path) -> None:
    options = ["--channels", "4", "--steps", "11", "--training-steps", "1", "--out", str(tmp_path)]
    status, output = run("analyze", "lot-condition", *options)
    assert status == 0
    assert {path.name for path in tmp_path.iterdir()} == {"lot-condition.csv", "lot-condition.png", "lot-condition.pdf"}
    assert "lot-published" in output


def test_equal_budget_writes_one_table_and_one_plot(tmp_path: Path) -> None:
    options = ["--dataset", "digits", "--steps", "1", "--images", "5", "--layer", "aol", "--out", str(tmp_path)]
    status, _ = run("bench", "equal-budget", *options, "--device", "cpu")
    assert status == 0
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {f"equal-budget.{kind}" for kind in ("csv", "json", "md", "png")}


def test_layer_bench_writes_rows_and_the_three_figures(tmp_path: Path) -> None:
    shape = ["--size", "32", "--width", "2", "--kernel", "3", "--batch", "1", "--repeats", "1"]
    status, _ = run("bench", "layers", *shape, "--layer", "standard", "--out", str(tmp_path), "--device", "cpu")
    assert status == 0
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"layers.csv", "layers.json", "figure-2.png", "figure-5.png", "figure-6.png"}


def test_unknown_layer_is_one_line_and_status_two() -> None:
    for command in (("layers",), ("equal-budget", "--dataset", "digits")):
        status, output = run("bench", *command, "--layer", "sox")
        assert status == 2
        assert "must be one of bro, soc," in output
        assert len(output.strip().splitlines()) == 1


@pytest.mark.parametrize("option", ["--batch", "--repeats"])
def test_zero_is_not_taken_for_no_option(option: str, tmp_path: Path) -> None:
    status, output = run("bench", "layers", option, "0", "--layer", "standard", "--out", str(tmp_path))
    assert status == 2
    assert "batch and repeats must be at least 1, got" in output
    assert list(tmp_path.iterdir()) == []


def test_certificate_and_info_tell_that_lot_has_not_converged(tmp_path: Path) -> None:
    architecture = StackArchitecture(layer="lot", widths=(4, 4), kernels=(3, 3), strides=(2, 1))
    recipe = replace(named_recipe("digits/quickstart"), model=architecture)
    model = build_model(architecture, dataset_spec("digits"))
    last = [layer for layer in model.modules() if isinstance(layer, LOTConv2d)][-1]
    nn.init.kaiming_normal_(last.weight, generator=torch.Generator().manual_seed(0))
    run_folder = create_run(tmp_path / "run", recipe)
    save_weights(run_folder.weights, model.state_dict(), recipe=recipe)
    certify_run(run_folder.path, limit=2)
    output = CliRunner().invoke(bronet, ["info", str(run_folder.path)]).output
    assert "has not converged after 10 steps" in output
