"""Checkpoints and weight files: whole or refused, never run as code, never half-written."""

import os
import pickle
import resource
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from bronet.errors import BronetError
from bronet.recipe import Recipe, named_recipe, override, to_text
from bronet.run.folder import RunFolder
from bronet.run.weights import load_weights, save_weights, stored_recipe, write_tensors
from bronet.training import train_recipe
from bronet.training.checkpoint import Checkpoints
from bronet.training.distributed import Processes
from bronet.training.optimizers import Optimizer, build_optimizer
from bronet.training.statistics import Tally
from tiny_run import header_of, rewrite, tiny_recipe

RECIPE = named_recipe("digits/quickstart")


def small_model(seed: int = 0, width: int = 5) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width))


def optimizer_of(model: nn.Module) -> Optimizer:
    return build_optimizer(RECIPE.optim, list(model.parameters()))


def trained(model: nn.Module, steps: int = 3) -> Optimizer:
    optimizer = optimizer_of(model)
    for _ in range(steps):
        optimizer.prepare(RECIPE.optim.lr)
        model.zero_grad()
        model(torch.linspace(-1, 1, 32).view(8, 4)).square().mean().backward()
        optimizer.step()
    return optimizer


def checkpoints(folder: Path, model: nn.Module, optimizer: Optimizer, recipe: Recipe = RECIPE) -> Checkpoints:
    tally = Tally(eps=0.1, device="cpu")
    return Checkpoints(RunFolder(folder), recipe, model, {"optimizer": optimizer}, tally, Processes())


def write(path: Path, model: nn.Module, optimizer: Optimizer) -> None:
    checkpoints(path.parent, model, optimizer).save(3, 1.25)


def restore(path: Path, model: nn.Module | None = None) -> tuple[int, float]:
    model = model or small_model()
    return checkpoints(path.parent, model, optimizer_of(model)).load(path)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint.safetensors"
    model = small_model()
    write(path, model, trained(model))
    return path


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond `size` bytes: what a full disk does, without filling one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_checkpoint_restores_every_bit(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    model = small_model()
    optimizer = trained(model)
    write(path, model, optimizer)
    other = small_model(seed=1)
    restored = optimizer_of(other)
    assert checkpoints(tmp_path, other, restored).restore(total_steps=3) == (3, 1.25)
    for name, tensor in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)
    assert restored.tensors().keys() == optimizer.tensors().keys()
    for name, tensor in optimizer.tensors().items():
        assert torch.equal(restored.tensors()[name], tensor)


def test_a_checkpoint_cut_short_anywhere_is_refused(checkpoint: Path) -> None:
    content = checkpoint.read_bytes()
    for length in (0, 4, 8, 100, len(content) // 2, len(content) - 1):
        checkpoint.write_bytes(content[:length])
        with pytest.raises(BronetError, match="damaged, cut short or of another kind"):
            restore(checkpoint)


class Payload:
    """A pickle that would make a folder when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.mark),)


def test_a_pickle_is_refused_and_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    plain, zipped = tmp_path / "plain.safetensors", tmp_path / "zipped.safetensors"
    plain.write_bytes(pickle.dumps(Payload(mark)))
    torch.save({"weights": Payload(mark)}, zipped)
    for path in (plain, zipped):
        with pytest.raises(BronetError, match="another kind"):
            restore(path)
        with pytest.raises(BronetError, match="another kind"):
            load_weights(path, small_model())
    assert not mark.exists()


def test_files_of_another_kind_are_refused(tmp_path: Path, checkpoint: Path) -> None:
    foreign = tmp_path / "foreign.safetensors"
    for metadata in (None, {"bronet": "weights"}, {"bronet": "[" * 10_000}, {"bronet": "[]"}):
        save_file({"a": torch.zeros(3)}, foreign, metadata=metadata)
        with pytest.raises(BronetError, match="holds something else"):
            restore(foreign)
    with pytest.raises(BronetError, match="must be a bronet weights file"):
        load_weights(checkpoint, small_model())
    with pytest.raises(BronetError, match="does not exist"):
        restore(tmp_path / "nothing.safetensors")
    with pytest.raises(BronetError, match="must be a bronet checkpoint file"):
        restore(tmp_path)


def test_a_checkpoint_of_another_recipe_is_refused_with_the_differences(checkpoint: Path) -> None:
    other = override(RECIPE, ["optim.lr=0.5", "train.seed=9"])
    model = small_model()
    with pytest.raises(BronetError, match=r"optim\.lr: \S+ -> 0\.5, train\.seed: 0 -> 9"):
        checkpoints(checkpoint.parent, model, optimizer_of(model), other).load(checkpoint)


def test_a_checkpoint_of_another_model_is_refused(checkpoint: Path) -> None:
    with pytest.raises(BronetError, match=r"0\.bias in .* must have shape \(6,\), got \(5,\)"):
        restore(checkpoint, small_model(width=6))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"optimizer.0.exp_avg": None}, "lacks 1 .* optimizer.0.exp_avg"),
        ({"optimizer.9.exp_avg": torch.zeros(2)}, "holds 1 .* optimizer.9.exp_avg"),
        ({"lookahead.0.slow": torch.zeros(5, 4)}, "holds 1 .* lookahead.0.slow"),
        ({"optimizer.0.exp_avg": torch.zeros(2)}, r"optimizer.0.exp_avg in .* must have shape \(5, 4\), got \(2,\)"),
        ({"other": torch.zeros(2)}, "holds 1 .* other"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(
    checkpoint: Path, change: dict[str, torch.Tensor | None], words: str
) -> None:
    tensors = {name: tensor for name, tensor in (load_file(checkpoint) | change).items() if tensor is not None}
    rewrite(checkpoint, tensors, header_of(checkpoint))
    model = small_model(seed=1)
    optimizer = trained(model, steps=1)
    before = [tensor.clone() for tensor in (*model.state_dict().values(), *optimizer.tensors().values())]
    with pytest.raises(BronetError, match=words):
        checkpoints(checkpoint.parent, model, optimizer).load(checkpoint)
    after = (*model.state_dict().values(), *optimizer.tensors().values())
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("step", "-1", "step in .* must be a number"),
        ("step", "nan", "step in .* must be a number"),
        ("step", "9" * 10_000, "step in .* must be a number"),
        ("seconds", "soon", "seconds in .* must be a number"),
        ("recipe", "a: [", "valid YAML"),
        ("recipe", "", "a recipe must be a table"),
    ],
)
def test_hostile_metadata_is_refused_in_one_line(checkpoint: Path, key: str, value: str, words: str) -> None:
    rewrite(checkpoint, load_file(checkpoint), header_of(checkpoint) | {key: value})
    with pytest.raises(BronetError, match=words) as error:
        restore(checkpoint)
    assert "\n" not in str(error.value)


def test_a_full_disk_leaves_the_old_checkpoint_and_no_rubbish(checkpoint: Path) -> None:
    before = checkpoint.read_bytes()
    model = small_model(seed=3)
    with largest_file(len(before) // 2), pytest.raises(BronetError, match=r"could not write .* unchanged") as error:
        write(checkpoint, model, trained(model))
    assert "\n" not in str(error.value)
    assert checkpoint.read_bytes() == before
    assert os.listdir(checkpoint.parent) == [checkpoint.name]
    restore(checkpoint)


def test_weights_return_with_their_recipe(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    model, other = small_model(), small_model(seed=1)
    save_weights(path, model.state_dict(), recipe=RECIPE)
    assert stored_recipe(path) == RECIPE
    load_weights(path, other)
    for name, tensor in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)


def test_weights_can_be_read_by_whoever_may_read_other_new_files(tmp_path: Path) -> None:
    path, other = tmp_path / "model.safetensors", tmp_path / "other"
    save_weights(path, small_model().state_dict(), recipe=RECIPE)
    other.touch()
    assert path.stat().st_mode == other.stat().st_mode


def test_weights_may_be_loaded_into_a_model_of_higher_precision(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    model = small_model()
    save_weights(path, model.state_dict(), recipe=RECIPE)
    double = small_model(seed=1).double()
    load_weights(path, double)
    assert torch.equal(double.state_dict()["0.weight"], model.state_dict()["0.weight"].double())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"0.weight": None}, "lacks 1 tensors .* 0.weight"),
        ({"extra": torch.zeros(1)}, "holds 1 tensors .* extra"),
        ({"0.bias": torch.zeros(7)}, r"0.bias in .* must have shape \(5,\), got \(7,\)"),
        ({"0.bias": torch.zeros(5, dtype=torch.int64)}, "0.bias in .* must hold torch.float32 numbers"),
        ({"0.bias": torch.full((5,), torch.nan)}, "0.bias in .* must be finite"),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_change_nothing(
    tmp_path: Path, change: dict[str, torch.Tensor | None], words: str
) -> None:
    path = tmp_path / "model.safetensors"
    tensors = {k: t for k, t in (small_model().state_dict() | change).items() if t is not None}
    write_tensors(path, "weights", tensors, {"recipe": to_text(RECIPE)})
    model = small_model(seed=1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(BronetError, match=words):
        load_weights(path, model)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_checkpoint_with_one_changed_byte_is_refused(checkpoint: Path) -> None:
    """Every 97th byte and all of the header, in which the checksum itself lies."""
    content = checkpoint.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    model = small_model(seed=1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for at in {*range(header), *range(0, len(content), 97), len(content) - 1}:
        checkpoint.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
        with pytest.raises(BronetError) as error:
            restore(checkpoint, model)
        assert "\n" not in str(error.value)
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    checkpoint.write_bytes(content)
    assert restore(checkpoint) == (3, 1.25)


@pytest.mark.parametrize("keep", [1, 2])
def test_a_finished_run_with_a_damaged_checkpoint_keeps_its_files(tmp_path: Path, keep: int) -> None:
    """With an older checkpoint it is trained to the end again, and even then its weights are not written."""
    recipe = tiny_recipe("train.epochs=2", f"train.keep_checkpoints={keep}")
    run = train_recipe(recipe, tmp_path / "run", progress=False)
    content = bytearray(run.checkpoint.read_bytes())
    content[-20] ^= 1
    run.checkpoint.write_bytes(content)
    files = (run.weights, run.record)
    before = [(path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino) for path in files]
    with nullcontext() if keep > 1 else pytest.raises(BronetError, match="its own checksum"):
        train_recipe(recipe, run.path, resume=True, progress=False)
    assert [(path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino) for path in files] == before
