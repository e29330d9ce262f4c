"""A network of the user's own through every command; its code comes from --model, never from the folder."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner, Result

import bronet
from bronet.certificates.run import certify_run
from bronet.cli import app
from bronet.data import load_dataset
from bronet.errors import BronetError
from bronet.recipe import from_text
from bronet.run.certificate import read_certificate_rows
from bronet.run.folder import RunFolder, open_run
from bronet.run.own import save_run
from bronet.run.weights import load_model
from bronet.web.served import Gallery, read_cards
from own_networks import Branching

MODEL = ("--model", "own_networks:Branching")
LIMIT = ("--limit", "40")
pytestmark = pytest.mark.usefixtures("one_thread")
terminal = CliRunner()


def trained() -> Branching:
    """Return the network after a few steps on the digits."""
    torch.manual_seed(0)
    model, digits = Branching(), load_dataset("digits", "train")
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2)
    for step in range(120):
        index = torch.arange(step * 64, (step + 1) * 64) % len(digits)
        loss = nn.functional.cross_entropy(4 * model(digits.pixels(index)), digits.labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Branching, Path]:
    """A trained network and its certified run."""
    model, folder = trained(), tmp_path_factory.mktemp("own") / "mine"
    run = save_run(model, folder)
    certify_run(run, limit=40)
    return model, folder


@pytest.fixture
def folder(saved: tuple[Branching, Path], tmp_path: Path) -> Path:
    """A copy of the certified run."""
    return Path(shutil.copytree(saved[1], tmp_path / "mine"))


def run(*words: str) -> Result:
    """Run a command that must succeed."""
    result = terminal.invoke(app, words)
    assert result.exit_code == 0, result.output
    return result


def refused(*words: str) -> str:
    """Return the one line with which a command refuses."""
    result = terminal.invoke(app, words)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_certify_writes_the_rows_of_python(folder: Path, saved: tuple[Branching, Path]) -> None:
    RunFolder(folder).certificate().rows.unlink()
    run("certify", str(folder), *MODEL, *LIMIT)
    images = load_dataset("digits", "test").subset(torch.arange(40))
    found = bronet.certify(saved[0], images)
    assert list(found.rows) == read_certificate_rows(RunFolder(folder).certificate().rows)
    assert found.clean_accuracy > 0.5
    assert (found.radius > 0.01).any()


def test_report_verify_info_and_check_take_the_run(folder: Path) -> None:
    run("report", str(folder), *MODEL)
    assert (folder / "report" / "report.html").exists()
    assert "40 images" in run("verify", str(folder), *MODEL).stdout
    assert "40 images" in run("verify", str(folder / "certificate.json"), *MODEL).stdout
    assert "own_networks:Branching" in run("info", str(folder), *MODEL).stdout
    assert "certifiable" in run("check", str(folder), *MODEL).stdout


def test_an_attack_breaks_no_certificate_of_the_run(folder: Path) -> None:
    words = ("--attack", "pgd", "--eps", "0.2", "--steps", "10", "--restarts", "1")
    assert "certified images broken" in run("attack", str(folder), *MODEL, *LIMIT, *words).stdout


@pytest.mark.parametrize("proved", [(), ("--proved",)])
def test_export_writes_the_network_and_the_program_of_its_proof(folder: Path, proved: tuple[str, ...]) -> None:
    run("export", str(folder), *MODEL, "--format", "torch-export", *proved)
    assert (folder / ("proved.pt2" if proved else "model.pt2")).exists()
    assert "no radius is above" in run("verify", str(folder), *MODEL).stdout


def test_the_page_opens_the_run(folder: Path) -> None:
    pytest.importorskip("fastapi")
    cards = read_cards([open_run(folder, network=Branching)])
    served = Gallery(cards, samples=4, device="cpu", data_dir=None).open(0)
    assert served.network.image_shape == (1, 8, 8)
    assert served.samples is not None


@pytest.mark.parametrize("command", ["certify", "verify", "attack", "export", "check"])
def test_commands_that_need_the_network_ask_for_it(folder: Path, command: str) -> None:
    assert "--model package.module:Net" in refused(command, str(folder))


@pytest.mark.parametrize("command", ["certify", "report", "verify", "attack", "export", "serve", "info", "check"])
def test_another_name_than_the_folders_is_refused(folder: Path, command: str) -> None:
    assert "must be the network" in refused(command, str(folder), "--model", "own_networks:narrow")


def test_runs_of_named_networks_take_no_model(tmp_path: Path) -> None:
    assert "leave it out" in refused("certify", "bronet-digits/digits", "--out", str(tmp_path / "a"), *MODEL)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_networks:narrow", "tensors that"),
        ("own_networks:broken", "ValueError: no network today"),
        ("own_networks:number", "must be a torch.nn.Module, got int"),
        ("own_networks:absent", "AttributeError"),
        ("no_such_module_anywhere:Net", "finds no module no_such_module_anywhere"),
    ],
)
def test_code_that_does_not_make_the_network_is_refused(folder: Path, name: str, message: str) -> None:
    text = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(text.replace("own_networks:Branching", name))
    assert message in refused("check", str(folder), "--model", name)


@pytest.mark.parametrize("name", ["own_networks", "own_networks:", ":Branching", "a b:Net", "os;x:Net", "a..b:Net"])
def test_a_name_is_a_module_and_a_class(folder: Path, name: str) -> None:
    with pytest.raises(BronetError, match="module:Net"):
        from_text((folder / "recipe.yaml").read_text().replace("own_networks:Branching", f"'{name}'"))


def hostile(folder: Path, name: str) -> Path:
    """Put code with that name into the folder, and name it in the recipe; return the file that it would write."""
    trace, text = folder.parent / "was-imported", (folder / "recipe.yaml").read_text()
    (folder / f"{name}.py").write_text(
        f"open({str(trace)!r}, 'w').close()\nfrom own_networks import Branching as Net\n"
    )
    (folder / "recipe.yaml").write_text(text.replace("own_networks:Branching", f"{name}:Net"))
    return trace


COMMANDS = ("certify", "verify", "attack", "export", "check", "info", "report", "serve")


@pytest.mark.parametrize("command", COMMANDS)
def test_code_in_the_folder_is_never_imported(folder: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = hostile(folder, f"evil_{command}")
    monkeypatch.chdir(folder)
    terminal.invoke(app, [command, "."])
    terminal.invoke(app, [command, str(folder), *MODEL])
    assert not trace.exists()


@pytest.mark.parametrize("way", ["current folder", "python path", "link", "package"])
def test_code_in_the_folder_is_not_even_imported_by_name(
    folder: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"evil_{way.split(maxsplit=1)[0]}"
    trace, words = hostile(folder, name), f"{name}:Net"
    if way == "current folder":
        monkeypatch.chdir(folder)
    elif way == "python path":
        monkeypatch.syspath_prepend(str(folder))
    elif way == "link":
        link = folder.parent / "elsewhere"
        link.symlink_to(folder)
        monkeypatch.syspath_prepend(str(link))
    else:
        monkeypatch.syspath_prepend(str(folder.parent))
        words = f"mine.{name}:Net"
        text = (folder / "recipe.yaml").read_text()
        (folder / "recipe.yaml").write_text(text.replace(f"{name}:Net", words))
    reason = "finds no module" if way == "current folder" else "run's own folder"
    assert reason in refused("check", str(folder), "--model", words)
    assert not trace.exists()
    assert name not in sys.modules


def test_modules_of_the_current_folder_are_found(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "networks_here.py").write_text("from own_networks import Branching as Net\n")
    text = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(text.replace("own_networks:Branching", "networks_here:Net"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    assert "certifiable" in run("check", str(folder), "--model", "networks_here:Net").stdout


def test_other_weights_are_noticed(folder: Path, tmp_path: Path) -> None:
    save_run(Branching(), tmp_path / "other")
    shutil.copy(tmp_path / "other" / "model.safetensors", folder / "model.safetensors")
    assert "model.safetensors differs" in refused("verify", str(folder), *MODEL)


def test_other_code_is_noticed(folder: Path) -> None:
    class Doubled(Branching):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(images)

    with pytest.raises(BronetError, match="does not hold"):
        bronet.certificates.verify.verify_run(folder, network=Doubled)


def test_a_saved_network_computes_what_the_model_computes(saved: tuple[Branching, Path]) -> None:
    model, path = saved
    images = load_dataset("digits", "test").pixels(torch.arange(8))
    loaded = load_model(open_run(path, network=Branching))
    assert torch.equal(loaded(images), model.eval()(images))


def test_own_class_folders_are_a_data_set_of_a_run(tmp_path: Path) -> None:
    from PIL import Image

    for split in ("train", "test"):
        for shade, name in ((30, "dark"), (220, "light")):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            Image.new("L", (2, 2), shade).save(tmp_path / "data" / split / name / "one.png")
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    made = save_run(model, tmp_path / "run", dataset=tmp_path / "data", import_path="anywhere:make")
    rows = certify_run(open_run(made.path, network=lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))).rows
    assert [row.file for row in rows] == ["dark/one.png", "light/one.png"]
    assert made.classes() == ("dark", "light")


class Width(nn.Module):
    """A class that cannot be made without arguments."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.flatten, self.dense, self.head = nn.Flatten(), nn.Linear(64, width), nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.dense(self.flatten(images))))


def test_what_cannot_be_a_run_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    class Local(Branching):
        pass

    tied = Width(10)
    tied.again = tied.head
    for model, settings, message in (
        (Width(8), {}, "must be made without arguments"),
        (Local(), {}, "import_path"),
        (Branching(), {"import_path": "not a name"}, "module:Net"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 9)), {"import_path": "a:b"}, "must give 10 logits"),
        (nn.Sequential(nn.Linear(3, 10)), {"import_path": "a:b"}, "must take images of digits"),
        (nn.Flatten(), {"import_path": "a:b"}, "must have parameters"),
        (Branching(), {"dataset": "digitz"}, "dataset must be one of"),
    ):
        with pytest.raises(BronetError, match=message):
            save_run(model, tmp_path / "refused", **settings)
        assert not (tmp_path / "refused").exists()
    save_run(tied, tmp_path / "tied", import_path="a:b")  # tensors that share memory are stored whole


class Logits(nn.Module):
    """The least network: a linear layer, and a buffer that the forward does not take."""

    def __init__(self, buffer: torch.Tensor | None = None) -> None:
        super().__init__()
        self.flatten, self.head = nn.Flatten(), nn.Linear(64, 10)
        self.register_buffer("extra", buffer)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.flatten(images))


class Copying(Logits):
    """Code whose state_dict() returns copies, into which nobody can load."""

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in super().state_dict(*args, **kwargs).items()}


class Raising(Logits):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        raise KeyError("no such image")


def test_a_state_that_no_file_holds_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    one = torch.ones(3)
    odd = [
        one.to_sparse(),
        one.to("meta"),
        one.to(torch.float8_e4m3fn),
        one.to(torch.complex128),
        torch.ones(1).expand(3),
        torch.nested.nested_tensor([one, one[:2]], layout=torch.jagged),
    ]
    for buffer in odd:
        with pytest.raises(BronetError, match="extra in state_dict of Logits must be an ordinary tensor"):
            save_run(Logits(buffer), tmp_path / "refused", import_path="a:b")
    with pytest.raises(BronetError, match="extra of Logits must have numbers"):
        save_run(Logits(nn.UninitializedBuffer()), tmp_path / "refused", import_path="a:b")
    with pytest.raises(BronetError, match="extra in state_dict of Logits must be finite"):
        save_run(Logits(one / 0), tmp_path / "refused", import_path="a:b")
    with pytest.raises(BronetError, match=r"must take images of digits, .* KeyError: 'no such image'"):
        save_run(Raising(), tmp_path / "refused", import_path="a:b")
    assert not (tmp_path / "refused").exists()


def test_weights_that_do_not_arrive_in_the_network_are_noticed(tmp_path: Path) -> None:
    save_run(Logits(), tmp_path / "mine", import_path="a:b")
    with pytest.raises(BronetError, match=r"head.weight of Copying must take its numbers in"):
        load_model(open_run(tmp_path / "mine", network=Copying))
