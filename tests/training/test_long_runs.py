"""Long runs that behave: what is kept, what is averaged, and where a run that breaks says it broke."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bronet.errors import BronetError
from bronet.layers import LipschitzRegularizedConv2d
from bronet.models import CertifiableModel, build_model
from bronet.recipe import BRONetArchitecture, dataset_spec, named_recipe, parse_budget
from bronet.run.folder import create_run
from bronet.training.average import POWER_STEPS, Snapshot, WeightAverage
from bronet.training.distributed import Processes
from bronet.training.learner import Training, find_bad_layer
from bronet.training.run import RunOptions, open_training, train_recipe
from bronet.training.statistics import validate
from tiny_run import build, digits, header_of, rewrite, tiny_recipe

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_last_checkpoints_are_kept_and_a_damaged_one_is_passed_over(tmp_path: Path) -> None:
    recipe = tiny_recipe("train.epochs=5", "train.keep_checkpoints=3")
    run = train_recipe(recipe, tmp_path / "run", progress=False)
    numbers = [path.stem.removeprefix("checkpoint-") for path in run.older_checkpoints()]
    assert numbers == ["000000020", "000000015"]
    weights = run.weights.read_bytes()
    run.checkpoint.write_bytes(run.checkpoint.read_bytes()[:1000])
    train_recipe(recipe, run.path, resume=True, progress=False)
    assert run.weights.read_bytes() == weights
    assert len(run.log.read_text().splitlines()) == 5


def test_the_checkpoint_a_run_went_on_from_stays_until_a_new_one_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny_recipe("train.epochs=3", "train.keep_checkpoints=2")
    run = train_recipe(recipe, tmp_path / "run", progress=False)
    weights = run.weights.read_bytes()
    run.checkpoint.write_bytes(b"damaged")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bronet.training.checkpoint.write_tensors", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train_recipe(recipe, run.path, resume=True, progress=False)
    train_recipe(recipe, run.path, resume=True, progress=False)
    assert run.weights.read_bytes() == weights


@pytest.mark.parametrize("content", [None, b"", b"\xff\n", b'{"epoch": 1, "lo', b"[]\n"])
def test_a_run_goes_on_without_its_log(tmp_path: Path, content: bytes | None) -> None:
    recipe = tiny_recipe("train.epochs=3", "train.keep_checkpoints=2", "train.validate_every=1", "data.held_out=797")
    run = train_recipe(recipe, tmp_path / "run", progress=False)
    run.checkpoint.unlink()
    if content is None:
        run.log.unlink()
    else:
        run.log.write_bytes(content)
    train_recipe(recipe, run.path, resume=True, progress=False)
    assert [entry["epoch"] for entry in run.logged()] == [3]


def test_one_checkpoint_is_kept_unless_more_are_wanted(tmp_path: Path) -> None:
    run = train_recipe(tiny_recipe(), tmp_path / "run", progress=False)
    assert run.older_checkpoints() == []
    assert not run.best_weights.exists()


def test_the_best_weights_on_held_out_images_are_kept(tmp_path: Path) -> None:
    recipe = tiny_recipe("train.validate_every=1", "train.epochs=4", "optim.lr=2e-2")
    run = train_recipe(recipe, tmp_path / "run", progress=False)
    log = [json.loads(line) for line in run.log.read_text().splitlines()]
    certified = [entry["validation_certified_accuracy"] for entry in log]
    assert all(0 <= value <= entry["validation_accuracy"] <= 1 for value, entry in zip(certified, log, strict=True))
    assert run.best_weights.exists()
    last_is_best = certified[-1] > max(certified[:-1])
    assert (run.best_weights.read_bytes() == run.weights.read_bytes()) == last_is_best


def test_an_average_is_what_it_says_and_survives_an_interruption(tmp_path: Path) -> None:
    model = build(tiny_recipe())
    average = WeightAverage(model, decay=0.75)
    first = model.head.weight.detach().clone()
    with torch.no_grad():
        model.head.weight.fill_(1.0)
    average.take()
    torch.testing.assert_close(average.tensors()["head.weight"], 0.75 * first + 0.25)

    recipe = tiny_recipe("train.ema_decay=0.9")
    whole = train_recipe(recipe, tmp_path / "whole", progress=False)
    stored = load_file(whole.checkpoint)
    averaged = load_file(whole.weights)
    for name, tensor in averaged.items():
        assert torch.equal(tensor, stored[f"average.{name}"]) or name.endswith("power_vector")
    assert any(not torch.equal(tensor, stored[f"model.{name}"]) for name, tensor in averaged.items())
    resumed = train_recipe(recipe, whole.path, resume=True, progress=False)
    assert load_file(resumed.weights).keys() == averaged.keys()
    assert all(torch.equal(tensor, averaged[name]) for name, tensor in load_file(resumed.weights).items())


def test_where_weights_are_averaged_the_average_is_validated(tmp_path: Path) -> None:
    recipe = tiny_recipe("train.ema_decay=0.9", "train.validate_every=1", "optim.lr=2e-2")
    run = train_recipe(recipe, tmp_path / "run", progress=False)
    last = json.loads(run.log.read_text().splitlines()[-1])
    _, held_out = open_training(recipe, torch.device("cpu"), Processes())
    assert held_out is not None
    model = build_model(recipe.model, recipe.data.spec(), seed=1)
    stored = load_file(run.checkpoint)
    budgets = [parse_budget(text) for text in recipe.certify.eps]
    found = {}
    for kind in ("average", "model"):
        tensors = {name.removeprefix(f"{kind}."): value for name, value in stored.items() if name.startswith(kind)}
        model.load_state_dict(tensors, strict=False)
        model.update_estimates(POWER_STEPS)
        found[kind] = validate(model, held_out, budgets=budgets, processes=Processes())
    assert last["validation_accuracy"] == found["average"][0]
    assert last["validation_certified"] == pytest.approx(
        dict(zip(recipe.certify.eps, found["average"][1:], strict=True))
    )
    assert found["average"] != found["model"]


def test_norms_of_averaged_weights_are_not_those_of_an_averaged_vector() -> None:
    """The vectors start at random and long: their average would find a norm far too small, and certify too much."""
    model = build_model(named_recipe("cifar10/bronet-small").model, dataset_spec("cifar10"), seed=0)
    average = WeightAverage(model, decay=0.99)
    for _ in range(20):
        model.update_estimates(10)
        average.take()
    (layer,) = (part for part in model.modules() if isinstance(part, LipschitzRegularizedConv2d))
    before, known = layer.power_vector.clone(), layer.lipschitz_estimate().item()
    with average.in_place():
        assert layer.lipschitz_estimate().item() == pytest.approx(known, rel=0.02)
    assert torch.equal(layer.power_vector, before)


def spoil(model: CertifiableModel, name: str) -> None:
    with torch.no_grad():
        dict(model.named_parameters())[name].view(-1)[0] = float("nan")


def test_a_broken_layer_is_named() -> None:
    recipe = tiny_recipe()
    model = build(recipe).train()
    pixels = next(digits(recipe).between(0, 1)).pixels
    snapshot = Snapshot(model.state_dict())
    snapshot.take()

    def loss() -> torch.Tensor:
        return model(pixels).square().mean()

    assert find_bad_layer(model, loss).startswith("suddenly")
    spoil(model, "backbone.0.shift.bias")
    assert find_bad_layer(model, loss).endswith(" layer backbone.0.shift")
    snapshot.restore()
    assert find_bad_layer(model, loss).startswith("suddenly")
    assert "loss" in find_bad_layer(model, lambda: loss() * float("inf"))
    gradient = model.head.register_full_backward_pre_hook(lambda module, grads: (grads[0] * float("nan"),))
    assert "gradient of " in find_bad_layer(model, loss)
    gradient.remove()


def test_a_run_that_breaks_names_the_layer_and_what_to_try(tmp_path: Path) -> None:
    recipe = tiny_recipe()
    model = build(recipe)
    layer = model.get_submodule("backbone.0.linear")
    seen = iter(range(1_000_000))
    layer.register_forward_hook(lambda module, inputs, output: output / 0 if next(seen) >= 6 else output)
    with pytest.raises(BronetError, match=r"at step 7; .* layer backbone\.0\.linear; .*: lower"):
        Training(recipe, model, digits(recipe), create_run(tmp_path / "run", recipe)).fit(progress=False)


def test_a_diverging_loss_stops(tmp_path: Path) -> None:
    recipe = tiny_recipe("loss.name=ce", "loss.emma=false")
    model = build(recipe)
    seen = iter(range(1_000_000))
    model.register_forward_hook(lambda module, inputs, logits: logits * (1e6 if next(seen) >= 5 else 1))
    with pytest.raises(BronetError, match=r"^loss .* in epoch 2 after .*checkpoint"):
        Training(recipe, model, digits(recipe), create_run(tmp_path / "run", recipe)).fit(progress=False)


@pytest.mark.parametrize("lost", ["optimizer.3.exp_avg", "optimizer.step", "lookahead.0.slow"])
def test_a_checkpoint_without_some_optimiser_state_is_refused_in_one_line(tmp_path: Path, lost: str) -> None:
    recipe = tiny_recipe("train.epochs=1")
    run = train_recipe(recipe, tmp_path / "run", progress=False)
    tensors, header = load_file(run.checkpoint), header_of(run.checkpoint)
    del tensors[lost]
    rewrite(run.checkpoint, tensors, header)
    with pytest.raises(BronetError, match=f"lacks 1 .*{lost}") as error:
        train_recipe(recipe, run.path, resume=True, progress=False)
    assert "\n" not in str(error.value)


def test_leftovers_of_killed_writes_are_no_hindrance(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".recipe.yaml.123.tmp").write_text("name: dig")
    run = train_recipe(tiny_recipe("train.epochs=1"), folder, progress=False)
    assert not list(run.path.glob(".*"))


def test_tensorboard_is_written_if_wanted(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train_recipe(tiny_recipe("train.epochs=2"), tmp_path / "run", progress=False, options=RunOptions(track=True))
    events = EventAccumulator(str(run.tracking), size_guidance={"images": 0})
    events.Reload()
    tags = events.Tags()
    assert {"loss", "accuracy", "certified_accuracy", "lr"} <= set(tags["scalars"])
    assert tags["histograms"] == ["margin"]
    assert tags["images"]
    losses = [json.loads(line)["loss"] for line in run.log.read_text().splitlines()]
    torch.testing.assert_close([entry.value for entry in events.Scalars("loss")], losses)


def test_deterministic_runs_leave_the_settings_as_they_were(tmp_path: Path) -> None:
    recipe = tiny_recipe("train.epochs=1")
    plain = train_recipe(recipe, tmp_path / "plain", progress=False)
    strict = train_recipe(recipe, tmp_path / "strict", progress=False, options=RunOptions(deterministic=True))
    assert strict.weights.read_bytes() == plain.weights.read_bytes()
    assert not torch.are_deterministic_algorithms_enabled()
    assert isinstance(recipe.model, BRONetArchitecture)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_deterministic_runs_repeat_their_bits_on_a_gpu(tmp_path: Path) -> None:
    recipe = tiny_recipe("data.held_out=1097")
    runs = [
        train_recipe(recipe, tmp_path / name, device="cuda", progress=False, options=RunOptions(deterministic=True))
        for name in ("a", "b")
    ]
    assert runs[0].weights.read_bytes() == runs[1].weights.read_bytes()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_fused_centring_over_all_processes_equals_that_of_one(tmp_path: Path) -> None:
    from bronet.layers import Bias, Block, Centring, MaxMin
    from bronet.layers.dense import BROLinear

    torch.manual_seed(0)
    x = torch.randn(6, 8, 4, 4, device="cuda")
    gradients = []
    for exchange in (None, lambda mean: mean.clone()):
        torch.manual_seed(1)
        block = Block(BROLinear(8, 8, rank=2), Centring(8), MaxMin()).cuda().train()
        shift = block[1]
        assert isinstance(shift, Centring | Bias)
        if exchange is not None:
            shift.mean_over_all = exchange
        y = x.clone().requires_grad_()
        block(y).pow(3).sum().backward()
        gradients.append(y.grad)
    torch.testing.assert_close(gradients[0], gradients[1])
