"""The training loop: it learns, it stops when asked, and it resumes to the same bits."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bronet.errors import BronetError
from bronet.models import CertifiableModel
from bronet.recipe import BRONetArchitecture, Recipe
from bronet.run.folder import RunFolder, create_run, open_run
from bronet.run.weights import load_weights, stored_recipe
from bronet.training.learner import Training
from bronet.training.loop import Interrupted, stop_requests
from bronet.training.run import train_recipe
from tiny_run import EPOCHS, STEPS_PER_EPOCH, build, digits, split_digits, tiny_recipe

CHANCE = 0.1
TIMES = ("images_per_second", "seconds")
pytestmark = pytest.mark.usefixtures("one_thread")


def log_without_times(run: RunFolder) -> list[dict[str, object]]:
    entries = [json.loads(line) for line in run.log.read_text().splitlines()]
    return [{key: value for key, value in entry.items() if key not in TIMES} for entry in entries]


def at_forward(model: CertifiableModel, number: int, act: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Let `act` see, and replace, the logits of the forward pass of training with this number."""
    seen = iter(range(1, 1_000_000))

    def hook(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], logits: torch.Tensor) -> torch.Tensor:
        return act(logits) if module.training and next(seen) == number else logits

    model.register_forward_hook(hook)


def interrupt(logits: torch.Tensor) -> torch.Tensor:
    os.kill(os.getpid(), signal.SIGINT)
    return logits


def interrupted_and_resumed(recipe: Recipe, path: Path, steps: list[int]) -> RunFolder:
    """Run to the end with a real SIGINT after each of these steps."""
    run = create_run(path, recipe)
    held_out = split_digits(recipe)[1] if recipe.train.validate_every else None
    done = 0
    for step in steps:
        model = build(recipe)
        at_forward(model, step - done, interrupt)
        with pytest.raises(Interrupted, match=f"after step {step} of .* bronet train --resume") as stopped:
            Training(recipe, model, digits(recipe), run, held_out=held_out).fit(resume=done > 0, progress=False)
        assert stopped.value.exit_code == 130
        done = step
    train_recipe(recipe, path, resume=True, progress=False)
    return run


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["optim.name=sgd", "optim.lookahead_steps=0", "loss.name=ce+cr"],
        ["model.backbone=lipreg", "loss.name=ce"],
        ["optim.name=muon", "optim.momentum=0.95", "optim.weight_decay=1e-4", "optim.schedule=linear"],
        ["optim.name=muon", "optim.lookahead_steps=0"],
        ["optim.name=muon", "train.ema_decay=0.9", "train.validate_every=1", "model.backbone=lipreg"],
    ],
    ids=["bronet", "sgd", "liresnet", "muon", "muon-alone", "averaged"],
)
def test_an_interrupted_run_ends_with_the_bits_of_an_uninterrupted_one(tmp_path: Path, settings: list[str]) -> None:
    recipe = tiny_recipe(*settings)
    whole = train_recipe(recipe, tmp_path / "whole", progress=False)
    middle, boundary = 2, 2 * STEPS_PER_EPOCH
    parts = interrupted_and_resumed(recipe, tmp_path / "parts", [middle, 8, boundary, 14])
    assert log_without_times(parts) == log_without_times(whole)
    expected, found = load_file(whole.checkpoint), load_file(parts.checkpoint)
    assert expected.keys() == found.keys()
    for key, tensor in expected.items():
        assert torch.equal(found[key], tensor), key
    assert parts.weights.read_bytes() == whole.weights.read_bytes()


def test_training_learns_and_writes_the_run_folder(tmp_path: Path) -> None:
    recipe = tiny_recipe("train.epochs=12", "data.held_out=897", "optim.lr=1e-2")
    run = train_recipe(recipe, tmp_path / "run", progress=False, command="bronet train")
    log = [json.loads(line) for line in run.log.read_text().splitlines()]
    assert [entry["epoch"] for entry in log] == list(range(1, 13))
    assert log[-1]["loss"] < log[0]["loss"]
    assert log[-1]["accuracy"] > 3 * CHANCE > log[0]["accuracy"]
    assert 0 <= log[-1]["certified_accuracy"] <= log[-1]["accuracy"]
    assert json.loads(run.record.read_text())["seconds"] > 0
    assert open_run(run.path).recipe == stored_recipe(run.weights) == recipe
    load_weights(run.weights, build(recipe))


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    recipe = tiny_recipe("train.epochs=1")
    run = train_recipe(recipe, tmp_path / "run", progress=False)
    files = (run.weights, run.log, run.record)
    before = [path.read_bytes() for path in files]
    train_recipe(recipe, run.path, resume=True, progress=False, command="another, perhaps on another machine")
    assert [path.read_bytes() for path in files] == before
    run.record.unlink()
    train_recipe(recipe, run.path, resume=True, progress=False)
    assert json.loads(run.record.read_text())["seconds"] > 0


def test_weights_without_a_checkpoint_are_not_trained_anew(tmp_path: Path) -> None:
    recipe = tiny_recipe("train.epochs=1")
    run = train_recipe(recipe, tmp_path / "run", progress=False)
    run.checkpoint.unlink()
    weights = run.weights.read_bytes()
    with pytest.raises(BronetError, match=r"checkpoint, but .*/run has") as error:
        train_recipe(recipe, run.path, resume=True, progress=False)
    assert "\n" not in str(error.value)
    assert run.weights.read_bytes() == weights
    run.weights.unlink()
    train_recipe(recipe, run.path, resume=True, progress=False)  # from the start: nothing is lost
    assert run.weights.read_bytes() == weights


def test_resuming_with_another_recipe_is_refused(tmp_path: Path) -> None:
    run = train_recipe(tiny_recipe("train.epochs=1"), tmp_path / "run", progress=False)
    with pytest.raises(BronetError, match=r"train\.seed: 0 -> 5"):
        train_recipe(tiny_recipe("train.epochs=1", "train.seed=5"), run.path, resume=True, progress=False)
    with pytest.raises(BronetError, match="already holds a run"):
        train_recipe(tiny_recipe("train.epochs=1"), run.path, progress=False)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_checkpoint(tmp_path: Path, bad: float) -> None:
    recipe = tiny_recipe()
    run = create_run(tmp_path / "run", recipe)
    model = build(recipe)
    at_forward(model, 7, lambda logits: logits * bad)
    with pytest.raises(BronetError, match=r"at step 7; .*checkpoint.*: lower optim\.lr") as error:
        Training(recipe, model, digits(recipe), run).fit(progress=False)
    assert "\n" not in str(error.value)
    Training(recipe, build(recipe), digits(recipe), run).fit(resume=True, progress=False)
    assert len(log_without_times(run)) == EPOCHS


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_mixed_precision_trains(tmp_path: Path) -> None:
    recipe = tiny_recipe("train.precision=bf16", "train.epochs=6")
    run = train_recipe(recipe, tmp_path / "run", device="cuda", progress=False)
    log = log_without_times(run)
    assert float(str(log[-1]["loss"])) < float(str(log[0]["loss"]))


def test_mixed_precision_is_refused_on_a_cpu(tmp_path: Path) -> None:
    with pytest.raises(BronetError, match=r"train\.precision must be float32 on a CPU, got bf16"):
        train_recipe(tiny_recipe("train.precision=bf16"), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_held_out_images_are_not_trained_on() -> None:
    kept, held = split_digits(tiny_recipe())
    assert (len(kept), len(held)) == (200, 1097)
    ours = {bytes(image.flatten().tolist()) for image in kept.images}
    theirs = {bytes(image.flatten().tolist()) for image in held.images}
    assert not ours & theirs


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["train.batch_size=500"], "batch size must be at most the number of training images = 200"),
        (["data.held_out=5000"], "held-out images must satisfy"),
        (["data.name=tiny-imagenet", "data.held_out=0"], "must be in .* as the folder tiny-imagenet-200"),
        (["data.randaugment_probability=0.5"], "RandAugment needs"),
    ],
)
def test_a_recipe_that_cannot_run_is_refused_in_one_line(tmp_path: Path, settings: list[str], words: str) -> None:
    with pytest.raises(BronetError, match=words) as error:
        train_recipe(tiny_recipe(*settings), tmp_path / "run", progress=False)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("device", ["abacus", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(tmp_path: Path, device: str) -> None:
    with pytest.raises(BronetError, match="device must be"):
        train_recipe(tiny_recipe(), tmp_path / "run", device=device, progress=False)
    assert not (tmp_path / "run").exists()


def test_plain_lines_are_printed_when_there_is_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_recipe(tiny_recipe("train.epochs=2", "optim.warmup_epochs=0"), tmp_path / "run")
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("epoch 1/2  loss ")
    assert second.startswith("epoch 2/2  loss ")
    assert "img/s" in second


def test_a_second_signal_stops_at_once_and_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stop_requests(Path()) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal_number == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is before


def test_the_tiny_recipe_is_a_bronet() -> None:
    assert isinstance(tiny_recipe().model, BRONetArchitecture)
