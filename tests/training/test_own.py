"""Networks of the user's own in our loop, and our layers in loops of the user's own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import bronet
from bronet.certificates.run import certify_run
from bronet.cli import app
from bronet.data import load_dataset
from bronet.errors import BronetError
from bronet.run.folder import RunFolder, open_run
from bronet.run.weights import load_model
from bronet.training.own import Followed
from own_networks import Branching

SHORT = ("train.epochs=4", "optim.warmup_epochs=0", "loss.emma_eps=1/10", "loss.emma_start_eps=1/100")
SHAPE = (1, 8, 8)
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Branching, RunFolder]:
    torch.manual_seed(0)
    model, folder = Branching(), tmp_path_factory.mktemp("own") / "mine"
    return model, bronet.train(model, "digits", folder=folder, settings=SHORT, progress=False)


def test_training_makes_a_run_that_learned(trained: tuple[Branching, RunFolder]) -> None:
    _, run = trained
    first, *_, last = [entry["accuracy"] for entry in run.logged()]
    assert len(run.logged()) == 4
    assert last > first + 0.1
    assert run.recipe.model.name == "own_networks:Branching"


def test_the_model_and_its_run_are_the_same_network(trained: tuple[Branching, RunFolder]) -> None:
    model, run = trained
    images = load_dataset("digits", "test").subset(torch.arange(60))
    loaded = load_model(open_run(run.path, network=Branching))
    assert not model.training
    assert torch.equal(loaded(images.pixels(torch.arange(60))), model(images.pixels(torch.arange(60))))
    assert certify_run(run, limit=60).rows == bronet.certify(model, images).rows


def test_a_stopped_training_goes_on_to_the_same_bits(
    trained: tuple[Branching, RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bronet.training.learner import Training

    class StoppedError(Exception):
        pass

    end_epoch = Training.end_epoch

    def stop_after_two(self: Training, epoch: int) -> None:
        end_epoch(self, epoch)
        if epoch == 2:
            raise StoppedError

    torch.manual_seed(0)
    monkeypatch.setattr(Training, "end_epoch", stop_after_two)
    with pytest.raises(StoppedError):
        bronet.train(Branching(), folder=tmp_path / "run", settings=SHORT, progress=False)
    monkeypatch.setattr(Training, "end_epoch", end_epoch)
    torch.manual_seed(0)
    again = Branching()
    bronet.train(again, folder=tmp_path / "run", settings=SHORT, progress=False, resume=True)
    assert all(torch.equal(value, trained[0].state_dict()[name]) for name, value in again.state_dict().items())


def test_the_estimate_is_that_of_the_proof_when_training_begins() -> None:
    torch.manual_seed(0)
    model = Branching()
    followed, proved = Followed(model, SHAPE, classes=10), bronet.prove(model, SHAPE)
    torch.testing.assert_close(followed.gap_lipschitz().double(), proved.gap_lipschitz, rtol=1e-5, atol=1e-6)


def test_the_estimate_follows_weights_that_grow() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 32), nn.Linear(32, 10))
    followed = Followed(model, SHAPE, classes=10)
    with torch.no_grad():
        for part in (model[0], model[3]):
            part.weight.mul_(3)
    now = bronet.prove(model, SHAPE).gap_lipschitz
    torch.testing.assert_close(followed.gap_lipschitz().double(), now, rtol=1e-4, atol=1e-5)
    followed.lipschitz_estimate().backward()
    assert all(float(part.weight.grad.norm()) > 0 for part in (model[0], model[3]))


def test_estimates_agree_with_those_of_the_librarys_networks() -> None:
    model = bronet.create_model("bronet-digits", dataset="digits")
    model.update_estimates(200)
    followed = Followed(model, SHAPE, classes=10)
    torch.testing.assert_close(followed.gap_lipschitz(), model.gap_lipschitz(), rtol=1e-4, atol=1e-5)


def test_a_state_is_that_of_the_network() -> None:
    model = Branching()
    assert Followed(model, SHAPE, classes=10).state_dict().keys() == model.state_dict().keys()


def test_the_command_says_where_such_a_run_goes_on(trained: tuple[Branching, RunFolder]) -> None:
    result = CliRunner().invoke(app, ["train", "--resume", str(trained[1].path)])
    assert result.exit_code == 2
    assert "trained in Python: bronet.train(model" in result.stderr


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 9)), "must give 10 logits"),
        (nn.Sequential(nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 10)), "cannot be trained"),
    ],
)
def test_networks_without_a_constant_are_refused_before_anything_is_written(
    model: nn.Module, message: str, tmp_path: Path
) -> None:
    with pytest.raises(BronetError, match=message):
        bronet.train(model, folder=tmp_path / "run", settings=SHORT, import_path="a:b")
    assert not (tmp_path / "run").exists()


LOOP = """
import torch, bronet
from own_networks import Branching

digits = bronet.data.load_dataset("digits", "train")
for compiled in (False, True):
    torch.manual_seed(0)
    model = Branching()
    forward = torch.compile(model, backend="eager") if compiled else model
    optimizer = torch.optim.NAdam(model.parameters(), lr=5e-3)
    for step in range(8):
        index = torch.arange(step * 64, (step + 1) * 64)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=compiled):
            logits = forward(digits.pixels(index)).float()
        loss = bronet.losses.logit_annealing(logits, digits.labels[index], temperature=0.75, offset=2.0, beta=5.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item(), bronet.certified_radius(forward, digits.pixels(index[:4])).sum().item())
"""


@pytest.mark.slow
def test_compiled_and_autocast_loops_learn_what_plain_ones_learn() -> None:
    # A process of its own: the checks of shapes, which tests switch on, are no code for torch.compile.
    place = str(Path(__file__).parents[1] / "helpers")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([place, *sys.path])}
    done = subprocess.run([sys.executable, "-c", LOOP], env=environment, capture_output=True, text=True, check=True)
    (plain, radius), (compiled, other) = (map(float, line.split()) for line in done.stdout.splitlines())
    assert compiled == pytest.approx(plain, rel=0.1)
    assert min(radius, other) > 0


def test_lightning_trains_a_network_that_is_then_certified(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network, self.losses = Branching(), list[float]()

        def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            images, labels = batch
            loss = bronet.losses.logit_annealing(self.network(images), labels, temperature=0.75, offset=2.0, beta=5.0)
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.NAdam(self.parameters(), lr=5e-3)

    torch.manual_seed(0)
    lit, digits = Lit(), load_dataset("digits", "train")
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(lit, torch.utils.data.DataLoader(digits, batch_size=64, shuffle=True))
    assert sum(lit.losses[-5:]) < sum(lit.losses[:5])
    assert len(bronet.certify(lit.network, load_dataset("digits", "test").subset(torch.arange(20)))) == 20
