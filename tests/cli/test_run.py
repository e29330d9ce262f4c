"""The command line from a recipe to a report, on a recipe shrunk to seconds."""

import csv
import errno
import html
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from bronet.cli import ExitStatus, app
from bronet.cli.train import QUICKSTART_RECIPE
from bronet.recipe import named_recipe, to_text

SHRUNK = ["model.width=8", "model.depth=1", "model.dense_depth=1", "model.dense_width=16", "data.held_out=1097"]
SHORT = ["train.epochs=1", "optim.warmup_epochs=0"]
TRAINED = {"recipe.yaml", "log.jsonl", "checkpoint.safetensors", "model.safetensors", "record.json"}
CERTIFIED = TRAINED | {"certificate.csv", "certificate.json"}
PICTURES = {"curve.png", "curve.pdf", "margins.png", "margins.pdf"}
REPORTED = PICTURES | {"report.html", "summary.md", "summary.json", "summary.csv"}

terminal = CliRunner()


def run(*words: str) -> Result:
    """Run a command that must succeed."""
    result = terminal.invoke(app, words)
    assert result.exit_code == 0, result.output
    return result


def refusal(*words: str) -> str:
    """Run a command that must be refused; return its one line on stderr."""
    result = terminal.invoke(app, words)
    assert result.exit_code == ExitStatus.USER_ERROR
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def settings(*values: str) -> list[str]:
    return [word for value in values for word in ("--set", value)]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "first"
    run("train", QUICKSTART_RECIPE, "--out", str(folder), *settings(*SHRUNK, *SHORT))
    return folder


def test_train_certify_report_write_all_files(trained: Path) -> None:
    assert names(trained) == TRAINED
    certified = run("certify", str(trained), "--eps", "1/10", "--limit", "30")
    assert names(trained) == CERTIFIED
    assert "certified accuracy, radius 1/10" in certified.stdout
    assert f"next:    bronet report {trained}" in certified.stdout
    with (trained / "certificate.csv").open() as file:
        assert [int(row["index"]) for row in csv.DictReader(file)] == list(range(30))
    reported = run("report", str(trained))
    assert names(trained / "report") == REPORTED
    assert str(trained / "report" / "report.html") in reported.stdout
    elsewhere = trained.parent / "elsewhere"
    shutil.rmtree(trained / "report")
    run("report", str(trained), "--out", str(elsewhere))
    assert names(elsewhere) == REPORTED
    assert not (trained / "report").exists()
    assert "30 test images, radii 1/10" in run("info", str(trained)).stdout


def test_a_log_that_is_damaged_or_a_folder_is_no_traceback(trained: Path) -> None:
    log = trained / "log.jsonl"
    content = log.read_bytes()
    log.write_bytes(b"\xff\n" + content)
    assert "1 of 1 epochs" in run("info", str(trained)).stdout
    log.unlink()
    log.mkdir()
    assert "Is a directory" in refusal("info", str(trained))
    log.rmdir()
    log.write_bytes(content)


def test_the_report_prints_commands_that_work_where_it_was_made(trained: Path) -> None:
    folder = trained.rename(trained.parent / "a run").relative_to(trained.parent)
    run("certify", str(folder), "--limit", "10")
    run("report", str(folder))
    (printed,) = re.findall(r"^bronet (report .*)</pre>$", (folder / "report" / "report.html").read_text(), re.M)
    run(*shlex.split(html.unescape(printed)))


def test_numbers_of_a_few_images_say_how_uncertain_they_are(trained: Path) -> None:
    assert "first 25 test images only; +- 20 points" in run("certify", str(trained), "--limit", "25").stdout
    pgd = ("--attack", "pgd", "--steps", "1", "--restarts", "1", "--eps", "1/10")
    assert "first 25 test images only; +- 20 points" in run("attack", str(trained), "--limit", "25", *pgd).stdout
    assert "only" not in run("certify", str(trained)).stdout


def test_training_that_cannot_be_tracked_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    folder = tmp_path / "run"
    words = ("train", QUICKSTART_RECIPE, "--out", str(folder), *settings(*SHRUNK, *SHORT))
    assert "needs tensorboard" in refusal(*words, "--track")
    assert not folder.exists()
    run(*words)


def test_two_runs_are_compared_in_one_table_and_one_plot(trained: Path) -> None:
    second = trained.parent / "second"
    run("train", QUICKSTART_RECIPE, "--seed", "1", "--out", str(second), *settings(*SHRUNK, *SHORT))
    for folder, eps in ((trained, "1/4"), (second, "1/8")):
        run("certify", str(folder), "--limit", "10", "--eps", eps)
    shown = run("report", str(trained), str(second), "--out", "both").stdout
    compared = {f"comparison.{kind}" for kind in ("html", "md", "csv", "json")}
    assert names(trained.parent / "both") == PICTURES | compared
    assert all(word in shown for word in ("first", "second", "ε = 1/8", "ε = 1/4"))
    assert "different folder names" in refusal("report", str(trained), str(trained))
    with Path("both/comparison.csv").open() as file:
        shown_at = {(row["run"], row["eps"]) for row in csv.DictReader(file)}
    assert shown_at == {(name, eps) for name in ("first", "second") for eps in ("1/4", "1/8")}


def test_a_dry_run_tells_size_and_time_and_changes_nothing(trained: Path) -> None:
    before = contents(trained)
    told = run(
        "train", QUICKSTART_RECIPE, "--dry-run", "--overwrite", "--out", "first", *settings(*SHRUNK, *SHORT)
    ).stdout
    facts = dict(re.split(r"  +", line.strip(), maxsplit=1) for line in told.splitlines())
    assert list(facts) == ["recipe", "parameters", "steps", "memory", "one step", "training", "run folder"]
    assert facts["steps"] == "3: 1 epochs with batches of 64"
    assert "about" in facts["training"]
    assert contents(trained) == before
    assert (
        refusal("train", "--resume", "first", "--dry-run")
        == "error: --resume and --dry-run exclude each other; give one of them"
    )


def test_the_default_folder_is_named_after_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(to_text(named_recipe(QUICKSTART_RECIPE)))
    result = run("train", "mine.yaml", *settings(*SHRUNK, *SHORT, "name=a/b"))
    assert "next:    bronet certify runs/a-b" in result.stdout
    assert names(Path("runs/a-b")) == TRAINED


def test_what_comes_next_is_quoted_and_keeps_the_place_of_the_data(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "with a space"
    words = ["--data-dir", str(tmp_path), *settings(*SHRUNK, *SHORT)]
    shown = run("train", QUICKSTART_RECIPE, "--out", str(out), *words).stdout
    assert f"next:    bronet certify '{out}' --data-dir {tmp_path}\n" in shown


def test_a_name_that_the_system_refuses_is_one_line() -> None:
    for words in (["certify"], ["verify"], ["info"], ["report"]):
        assert "File name too long" in refusal(*words, "a" * 300)


def test_a_name_that_the_terminal_cannot_show_ends_no_command(trained: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(trained, tmp_path / "ünï 日本")
    plain = {**os.environ, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, "-m", "bronet", "info", str(folder)], env=plain, capture_output=True, check=True
    )
    assert b"recipe" in done.stdout


def test_a_folder_that_cannot_be_written_to_is_named_before_the_work(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: Path, *args: object, **options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "touch", refused)
    told = refusal("certify", str(trained), "--limit", "10")
    assert f"could not write to {trained}" in told
    assert "certifying" not in told


def test_a_run_is_replaced_only_on_request(trained: Path) -> None:
    before = contents(trained)
    assert "already holds a run" in refusal("train", QUICKSTART_RECIPE, "--out", str(trained))
    assert contents(trained) == before
    run("train", QUICKSTART_RECIPE, "--out", str(trained), "--overwrite", "--seed", "1", *settings(*SHRUNK, *SHORT))
    assert json.loads((trained / "record.json").read_text())["seed"] == 1


def test_truncated_weights_are_one_line_and_write_nothing(trained: Path) -> None:
    weights = trained / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    before = contents(trained)
    assert "model.safetensors must be a bronet weights file" in refusal("certify", str(trained))
    assert contents(trained) == before


def test_nan_weights_are_one_line_and_write_nothing(trained: Path) -> None:
    weights = trained / "model.safetensors"
    with safe_open(weights, framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    tensors["head.weight"] = torch.full_like(tensors["head.weight"], torch.nan)
    save_file(tensors, weights, metadata=metadata)
    before = contents(trained)
    assert "head.weight" in refusal("certify", str(trained))
    assert contents(trained) == before


def test_certifying_an_unfinished_run_is_one_line(trained: Path) -> None:
    (trained / "model.safetensors").unlink()
    assert "model.safetensors: No such file or directory; train" in refusal("certify", str(trained))


def test_resuming_with_another_setting_names_it(trained: Path) -> None:
    assert "optim.lr" in refusal("train", str(trained), "--resume", "--set", "optim.lr=0.5")
