"""One command from data to a certified table: `bronet train --certify` is training, then `bronet certify`."""

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bronet.cli import ExitStatus, app
from bronet.cli.train import QUICKSTART_RECIPE
from bronet.data import ImageSet
from bronet.data.load import load_digits
from bronet.files import SEAL
from bronet.recipe import Recipe, read_recipe
from bronet.wording import duration_text
from generated_images import class_folders
from torchrun import together

SHRUNK = ["model.width=8", "model.depth=1", "model.dense_depth=1", "model.dense_width=16", "data.held_out=1097"]
SHORT = ["train.epochs=2", "train.keep_checkpoints=2", "optim.warmup_epochs=0"]
IMAGES = 500
LONG = r"(?:\d+ min )?[\d.]+ s"
TIME = re.compile(rf"^time:    training {LONG}, proof and 500 images {LONG}, (in all|this command) {LONG}$", re.M)
CERTIFICATE = ("certificate.csv", "certificate.json")
pytestmark = pytest.mark.usefixtures("one_thread")
terminal = CliRunner()


def run(*words: str) -> Result:
    """Run a command that must succeed."""
    result = terminal.invoke(app, words)
    assert result.exit_code == 0, result.output
    return result


def settings(*values: str) -> list[str]:
    return [word for value in values for word in ("--set", value)]


def table(printed: str) -> list[str]:
    """Return the lines of the table of accuracies."""
    return [line for line in printed.splitlines() if "accuracy" in line and "│" in line]


def facts(folder: Path) -> dict[str, object]:
    """Return the facts of a certificate that do not depend on when and how it was made."""
    content = json.loads((folder / "certificate.json").read_text())
    return {key: value for key, value in content.items() if key not in ("seconds", "command", SEAL)}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("oneshot") / "run"
    words = ["train", QUICKSTART_RECIPE, "--out", str(folder), "--device", "cpu", "--certify"]
    return folder, run(*words, *settings(*SHRUNK, *SHORT)).stdout


def test_one_command_gives_what_two_give(done: tuple[Path, str], tmp_path: Path) -> None:
    folder, printed = done
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    for name in CERTIFICATE:
        (copy / name).unlink()
    again = run("certify", str(copy), "--device", "cpu").stdout
    assert table(again) == table(printed) != []
    assert (copy / "certificate.csv").read_bytes() == (folder / "certificate.csv").read_bytes()
    assert facts(copy) == facts(folder)
    run("verify", str(folder))


def test_a_command_reads_each_split_once(
    done: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def recorded(split: str) -> ImageSet:
        read.append(split)
        return load_digits(split)

    monkeypatch.setattr("bronet.data.load.load_digits", recorded)
    folder = shutil.copytree(done[0], tmp_path / "run")
    run("certify", str(folder), "--limit", "20", "--device", "cpu")
    assert read == ["test"]
    attack = ["--attack", "pgd", "--steps", "1", "--restarts", "1", "--eps", "36/255", "--eps", "72/255"]
    run("attack", str(folder), "--limit", "20", "--device", "cpu", *attack)
    assert read == ["test"] * 2
    words = ["train", QUICKSTART_RECIPE, "--out", str(tmp_path / "new"), "--device", "cpu", "--certify"]
    run(*words, *settings(*SHRUNK, "train.epochs=1", "optim.warmup_epochs=0"))
    assert read == ["test", "test", "train", "test"]


def test_a_command_reads_the_recipe_of_its_run_once(
    done: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def recorded(path: Path, *, advice: str) -> Recipe:
        read.append(path)
        return read_recipe(path, advice=advice)

    monkeypatch.setattr("bronet.run.folder.read_recipe", recorded)
    folder = shutil.copytree(done[0], tmp_path / "run")
    attack = ("attack", str(folder), "--attack", "pgd", "--steps", "1", "--restarts", "1", "--device", "cpu")
    for words in (("certify", str(folder), "--device", "cpu"), ("verify", str(folder)), (*attack, "--limit", "8")):
        run(*words)
        assert read == [folder / "recipe.yaml"]
        read.clear()


def test_the_time_of_each_part_is_printed_and_kept(done: tuple[Path, str]) -> None:
    folder, printed = done
    (whole,) = TIME.findall(printed)
    assert whole == "in all"
    record, certificate = (json.loads((folder / name).read_text()) for name in ("record.json", "certificate.json"))
    assert f"training {duration_text(record['seconds'])}, " in printed
    assert f"images {duration_text(certificate['seconds'])}, " in printed
    assert record["steps"] == 2 * (200 // 64)
    assert f"next:    bronet report {folder}" in printed


def test_a_resumed_run_is_certified_too(done: tuple[Path, str], tmp_path: Path) -> None:
    """Once from its middle, once when there is nothing left to train."""
    folder = tmp_path / "run"
    shutil.copytree(done[0], folder)
    weights, rows = ((folder / name).read_bytes() for name in ("model.safetensors", "certificate.csv"))
    for name in (*CERTIFICATE, "model.safetensors", "record.json", "checkpoint.safetensors"):
        (folder / name).unlink()  # an older checkpoint is left
    for _ in range(2):
        printed = run("train", str(folder), "--resume", "--certify", "--device", "cpu").stdout
        assert TIME.findall(printed) == ["this command"]
        assert (folder / "model.safetensors").read_bytes() == weights
        assert (folder / "certificate.csv").read_bytes() == rows
        for name in CERTIFICATE:
            (folder / name).unlink()


def test_a_finished_run_without_its_record_gets_another(done: tuple[Path, str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(done[0], folder)
    (folder / "record.json").unlink()
    printed = run("train", str(folder), "--resume", "--certify", "--device", "cpu").stdout
    assert "proof and 500 images" in printed
    assert SEAL in json.loads((folder / "record.json").read_text())


@pytest.mark.parametrize("record", ["{}", '{"seconds": NaN}', '{"seconds": "long"}'])
def test_a_record_that_was_edited_is_refused_and_stays(done: tuple[Path, str], tmp_path: Path, record: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(done[0], folder)
    (folder / "record.json").write_text(record)
    for words in (("certify", str(folder), "--limit", "5"), ("report", str(folder)), ("info", str(folder))):
        result = CliRunner().invoke(app, list(words))
        assert (result.exit_code, result.output.count("\n")) == (ExitStatus.USER_ERROR, 1)
        assert "record.json" in result.output
    assert (folder / "record.json").read_text() == record


def test_certifying_that_is_interrupted_is_done_by_resuming(
    done: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "run"
    words = [
        "train",
        QUICKSTART_RECIPE,
        "--out",
        str(folder),
        "--device",
        "cpu",
        "--certify",
        *settings(*SHRUNK, *SHORT),
    ]
    with monkeypatch.context() as patched:
        patched.setattr("bronet.certificates.run.certify_run", interrupted)
        assert terminal.invoke(app, words).exit_code == ExitStatus.CTRL_C
    assert not (folder / "certificate.json").exists()
    record = (folder / "record.json").read_bytes()
    run("train", str(folder), "--resume", "--certify", "--device", "cpu")
    assert (folder / "certificate.csv").read_bytes() == (done[0] / "certificate.csv").read_bytes()
    assert (folder / "record.json").read_bytes() == record


def test_of_several_processes_one_certifies(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    printed = together(folder, "train.epochs=2", flags=("--certify",))
    assert printed.count("clean accuracy") == printed.count("time:    ") == printed.count("trained: ") == 1
    assert facts(folder)["images"] == IMAGES


def test_resuming_a_folder_that_is_not_there_is_not_taken_for_a_recipe(tmp_path: Path) -> None:
    missing = str(tmp_path / "run")
    result = terminal.invoke(app, ["train", missing, "--resume", "--certify"])
    assert result.exit_code == ExitStatus.USER_ERROR
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: --resume needs the folder of a run, and {missing} is no folder")


def test_test_images_that_are_missing_are_missed_before_training(tmp_path: Path) -> None:
    class_folders(tmp_path / "pets" / "train", ["ant", "bee", "cat"], 2)
    shape = ["data.name=pets", "data.channels=3", "data.height=64", "data.width=64", "data.classes=3"]
    words = ["train", QUICKSTART_RECIPE, "--data-dir", str(tmp_path), "--out", str(tmp_path / "run"), "--certify"]
    result = terminal.invoke(app, [*words, "--device", "cpu", *settings(*shape)])
    assert result.exit_code == ExitStatus.USER_ERROR
    (line,) = result.stderr.splitlines()
    assert "test" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (7.46, "7.5 s"), (59.96, "1 min 0 s"), (1152.4, "19 min 12 s"), (3725.0, "1 h 2 min 5 s")],
)
def test_times_read_as_one_says_them(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
