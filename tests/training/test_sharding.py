"""A run with sharded parameters (FSDP) is the run of one process: same weights, same files, resumed by either."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bronet.errors import BronetError
from bronet.recipe import named_recipe, override
from bronet.run.folder import open_run
from bronet.training import RunOptions, train_recipe
from torchrun import ENVIRONMENT, SECONDS, alone, largest_difference, together, torchrun_words

# BRONet: centring, a regularised stem, LA on EMMA's logits, NAdam in Lookahead, gradients clipped.
RUN = ("train.epochs=4", "train.ema_decay=0.5", "train.validate_every=2", "train.keep_checkpoints=4")
ROUNDING = 2e-4
FILES = ("model.safetensors", "checkpoint.safetensors", "best.safetensors")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One process's run and that of two with sharded parameters."""
    folder = tmp_path_factory.mktemp("runs")
    alone(folder / "one", *RUN)
    together(folder / "sharded", *RUN, flags=("--fsdp",))
    return folder / "one", folder / "sharded"


def half_way(finished: Path, copy: Path) -> Path:
    """Return a copy of a run as it was after its second epoch."""
    shutil.copytree(finished, copy)
    _, second, *_ = sorted(copy.glob("checkpoint-*.safetensors"))
    shutil.copy(second, copy / "checkpoint.safetensors")
    for path in (*copy.glob("checkpoint-*.safetensors"), copy / "model.safetensors"):
        path.unlink()
    return copy


def test_recipe_of_these_runs_is_the_papers() -> None:
    recipe = named_recipe("digits/quickstart")
    assert (recipe.loss.name, recipe.loss.emma, recipe.optim.name, recipe.optim.lookahead_steps) == (
        "la",
        True,
        "nadam",
        6,
    )
    assert recipe.optim.clip_norm is not None


def test_a_sharded_run_writes_the_files_of_one_process(runs: tuple[Path, Path]) -> None:
    one, sharded = runs
    for name in FILES:
        assert largest_difference(one, sharded, name) < ROUNDING
    left, right = load_file(one / "checkpoint.safetensors"), load_file(sharded / "checkpoint.safetensors")
    for name in (name for name in left if name.endswith("exp_avg")):
        torch.testing.assert_close(right[name], left[name], rtol=1e-3, atol=1e-3 * float(left[name].abs().max()))
    logs = [[json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()] for run in runs]
    for before, after in zip(*logs, strict=True):
        assert before["accuracy"] == after["accuracy"]
        assert before.get("validation_accuracy") == after.get("validation_accuracy")


def test_one_process_goes_on_from_a_sharded_checkpoint(runs: tuple[Path, Path], tmp_path: Path) -> None:
    folder = half_way(runs[1], tmp_path / "run")
    train_recipe(open_run(folder).recipe, folder, resume=True, progress=False)
    assert largest_difference(runs[0], folder) < ROUNDING


def test_sharded_processes_go_on_from_the_checkpoint_of_one(runs: tuple[Path, Path], tmp_path: Path) -> None:
    folder = half_way(runs[0], tmp_path / "run")
    printed = together(folder, *RUN, flags=("--fsdp", "--resume"))
    assert "epoch 3/4" in printed
    assert "epoch 2/4" not in printed
    assert largest_difference(runs[0], folder) < ROUNDING


def test_each_process_holds_half_of_lipconvnet_and_steps_like_one() -> None:
    """SGD, no centring, gradients clipped by the norm over all parts; the script asserts more on the way."""
    script = Path(__file__).parents[1] / "helpers" / "sharded_steps.py"
    done = subprocess.run(
        [*torchrun_words(2), str(script)], capture_output=True, env=ENVIRONMENT, timeout=SECONDS, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    for report in (first, second):
        assert report["difference"] < ROUNDING
        assert report["optimizer difference"] < 1e-3
        assert all(0.45 < share < 0.55 for share in report["shares"])
    assert [sum(parts) for parts in zip(first["shares"], second["shares"], strict=True)] == pytest.approx([1, 1, 1])
    reasons = {first["breaks"], second["breaks"]}
    assert sorted(reason.rpartition(" ")[2] for reason in reasons) == ["normalization", "process"]


def test_muon_cannot_be_sharded(tmp_path: Path) -> None:
    recipe = override(named_recipe("digits/quickstart"), ["optim.name=muon"])
    with pytest.raises(BronetError, match=r"optim.name must be nadam or sgd where .* \(fsdp\), got 'muon'") as error:
        train_recipe(recipe, tmp_path / "run", options=RunOptions(fsdp=True))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_one_process_has_nothing_to_shard_over(tmp_path: Path) -> None:
    with pytest.raises(BronetError, match=r"processes must be at least 2 .*\(fsdp\), got 1") as error:
        train_recipe(named_recipe("digits/quickstart"), tmp_path / "run", options=RunOptions(fsdp=True))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()
