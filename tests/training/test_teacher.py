"""The teacher: it learns, says how sure a label is, and leaves nothing behind but better labels."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bronet.errors import BronetError
from bronet.recipe import Recipe, override
from bronet.run.folder import create_run
from bronet.training.distributed import Processes
from bronet.training.learner import Training
from bronet.training.loop import Interrupted, training_loop
from bronet.training.run import train_recipe
from bronet.training.statistics import Display, Tally
from bronet.training.step import TrainStep
from bronet.training.teacher import Lessons, Teacher, new_teacher
from tiny_run import build, digits, split_digits, tiny_recipe
from torchrun import together

CPU = torch.device("cpu")
TAUGHT = ("loss.teacher=0.5", "loss.teacher_epochs=1")
pytestmark = pytest.mark.usefixtures("one_thread")


def recipe_with(*settings: str) -> Recipe:
    return tiny_recipe("train.epochs=2", *settings)


class Lines(Display):
    """Keeps the lines of finished epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[str] = []

    def epoch(self, line: str) -> None:
        self.epochs.append(line)


def teach(teacher: Teacher, recipe: Recipe) -> list[str]:
    """Train a teacher and return what was shown of its epochs."""
    batches, shown = digits(recipe), Lines()
    lessons = Lessons(recipe, batches, Processes(), teacher=teacher, display=shown)
    training_loop(lessons, batches.between(0, lessons.total_steps), steps_per_epoch=batches.steps_per_epoch)
    assert f"{lessons.finish():.1%}" in shown.epochs[-1]
    return shown.epochs


def test_a_teacher_learns_what_it_was_not_shown() -> None:
    recipe = recipe_with("loss.teacher=1", "loss.teacher_epochs=4")
    teacher = new_teacher(recipe, CPU)
    assert [line.split()[1] for line in teach(teacher, recipe)] == ["1/4", "2/4", "3/4", "4/4"]
    unseen = split_digits(recipe)[1].subset(torch.arange(300))
    targets = teacher.targets(unseen.images.float() / recipe.data.spec().scale, unseen.labels, share=1.0)
    accuracy = (targets.argmax(dim=1) == unseen.labels).float().mean()
    assert accuracy > 0.8  # of 300 images, after another 200: chance is 0.1
    assert not any(p.requires_grad for p in teacher.parameters())
    assert not teacher.training


def test_targets_are_probabilities_with_the_label_for_the_rest_of_the_share() -> None:
    teacher = new_teacher(recipe_with(*TAUGHT), CPU)
    pixels, labels = torch.rand(5, 1, 8, 8), torch.tensor([0, 3, 3, 9, 1])
    whole = teacher.targets(pixels, labels, share=1.0)
    for share in (0.0, 0.3, 1.0):
        found = teacher.targets(pixels, labels, share=share)
        truth = torch.nn.functional.one_hot(labels, 10)
        torch.testing.assert_close(found, share * whole + (1 - share) * truth)
        torch.testing.assert_close(found.sum(dim=1), torch.ones(5))


@pytest.mark.parametrize("size", [1, 3, 7, 16])
def test_images_of_any_size_can_be_taught(size: int) -> None:
    assert Teacher(2, 5)(torch.rand(4, 2, size, size)).shape == (4, 5)


@pytest.mark.parametrize("size", [(6, 8), (5, 8), (4, 7), (1, 1)])
def test_the_teacher_halves_as_pooling_does(size: tuple[int, int]) -> None:
    x = torch.randn(2, 3, *size)
    halving = next(module for module in Teacher(1, 2).modules() if type(module).__name__ == "_Halving")
    assert torch.equal(halving(x), torch.nn.functional.max_pool2d(x, 2, ceil_mode=True))


def test_a_step_follows_a_teacher_that_is_sure_and_not_the_labels() -> None:
    recipe = recipe_with("loss.teacher=1")
    teacher = new_teacher(recipe, CPU)
    teacher.head.weight.mul_(1e6)
    batch = next(digits(recipe).between(0, 1))
    says = teacher.targets(batch.pixels, batch.labels, share=1.0)
    assert (says.amax(dim=1) == 1).all()
    assert (says.argmax(dim=1) != batch.labels).any()

    def gradient(recipe: Recipe, labels: torch.Tensor) -> torch.Tensor:
        model = build(recipe).train()
        step = TrainStep(recipe, model, Tally(eps=0.1, device=CPU))
        if step.teacher is not None:
            step.teacher = teacher
        step(batch.pixels, labels, number=0, learning_rate=0.0, emma_eps=0.1)
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    plain = override(recipe, ["loss.teacher=0"])
    found = gradient(recipe, batch.labels)
    torch.testing.assert_close(found, gradient(plain, says.argmax(dim=1)), rtol=1e-4, atol=1e-6)
    assert not torch.allclose(found, gradient(plain, batch.labels), rtol=1e-2)


def test_a_share_of_zero_changes_no_bit(tmp_path: Path) -> None:
    plain = train_recipe(recipe_with(), tmp_path / "plain", progress=False)
    zero = train_recipe(recipe_with("loss.teacher=0", "loss.teacher_epochs=3"), tmp_path / "zero", progress=False)
    left, right = load_file(plain.weights), load_file(zero.weights)
    assert all(torch.equal(left[key], right[key]) for key in left)
    assert "teacher_accuracy" not in json.loads(zero.record.read_text())


def test_a_taught_run_records_its_teacher_and_keeps_nothing_of_it(tmp_path: Path) -> None:
    plain = train_recipe(recipe_with(), tmp_path / "plain", progress=False)
    run = train_recipe(recipe_with(*TAUGHT), tmp_path / "taught", progress=False)
    assert 0 < json.loads(run.record.read_text())["teacher_accuracy"] <= 1
    assert sorted(file.name for file in run.path.iterdir()) == sorted(file.name for file in plain.path.iterdir())
    left, right = load_file(plain.weights), load_file(run.weights)
    assert {key: value.shape for key, value in left.items()} == {key: value.shape for key, value in right.items()}
    assert any(not torch.equal(left[key], right[key]) for key in left)


def test_a_taught_run_stopped_twice_ends_with_the_bits_of_an_unbroken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First while the teacher learns, then after a step: the teacher is trained anew each time."""
    recipe = recipe_with(*TAUGHT)
    whole = train_recipe(recipe, tmp_path / "whole", progress=False)
    run = create_run(tmp_path / "parts", recipe)
    forward = Teacher.forward

    def interrupted_forward(self: Teacher, pixels: torch.Tensor) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGTERM)
        monkeypatch.setattr(Teacher, "forward", forward)
        return forward(self, pixels)

    monkeypatch.setattr(Teacher, "forward", interrupted_forward)
    model = build(recipe)
    with pytest.raises(Interrupted, match=r"epoch 1 of 1 .*teacher.* bronet train --resume") as stopped:
        Training(recipe, model, digits(recipe), run).fit(progress=False)
    assert stopped.value.exit_code == 143

    def interrupt(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    model.register_forward_pre_hook(interrupt)
    with pytest.raises(Interrupted, match="step 1 of 10"):
        Training(recipe, model, digits(recipe), run).fit(resume=True, progress=False)
    assert (
        train_recipe(recipe, run.path, resume=True, progress=False).weights.read_bytes() == whole.weights.read_bytes()
    )


def test_two_processes_have_one_teacher(tmp_path: Path) -> None:
    printed = together(tmp_path / "two", *TAUGHT, "train.epochs=2")
    assert printed.count("teacher 1/1  accuracy") == printed.count("trained: ") == 1
    assert 0 < json.loads((tmp_path / "two" / "record.json").read_text())["teacher_accuracy"] <= 1


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (["loss.teacher=1.5"], r"loss\.teacher must be at most 1, got 1\.5"),
        (["loss.teacher=-0.1"], r"loss\.teacher must be at least 0, got -0\.1"),
        (["loss.teacher_epochs=0"], r"loss\.teacher_epochs must be at least 1, got 0"),
        (
            ["loss.teacher=0.5", "loss.name=ce"],
            r"loss\.name must be la with a teacher \(loss\.teacher = 0\.5; 0 does without\), got ce",
        ),
    ],
)
def test_a_teacher_that_cannot_be_is_refused(settings: list[str], complaint: str) -> None:
    with pytest.raises(BronetError, match=complaint):
        recipe_with(*settings)


def test_a_batch_of_one_cannot_be_normalised() -> None:
    recipe = recipe_with(*TAUGHT, "train.batch_size=1")
    with pytest.raises(BronetError, match=r"train\.batch_size must be at least 2 .* got 1 for 1"):
        teach(Teacher(1, 10), recipe)


def test_a_teacher_that_diverges_is_reported() -> None:
    recipe = recipe_with(*TAUGHT)
    teacher = new_teacher(recipe, CPU)
    teacher.head.weight.fill_(torch.inf)
    with pytest.raises(BronetError, match=r"^logits of the teacher .* by step 5$"):
        teach(teacher, recipe)
