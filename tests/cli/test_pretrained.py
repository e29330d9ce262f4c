"""The command line on pretrained networks: a name wherever a run is wanted, and the sample labelled as one."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bronet.cli import ExitStatus, app
from bronet.models import build_model
from bronet.pretrained import save_pretrained
from bronet.pretrained.saving import published_text
from bronet.recipe import named_recipe, override
from bronet.report.evidence import read_evidence
from bronet.run.folder import create_run
from bronet.run.weights import save_weights
from tiny_run import train_tiny_run

DIGITS = "bronet-digits/digits"
CIFAR = "bronet-s-fast/cifar10"

pytestmark = pytest.mark.usefixtures("one_thread")
terminal = CliRunner()


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BRONET_DATA", raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def cifar10(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretrained folder of a small CIFAR-10 network that was never trained."""
    folder = tmp_path_factory.mktemp("cifar10")
    recipe = override(named_recipe("cifar10/lipconvnet-5-32"), ["model.width=4"])
    run = create_run(folder / "run", recipe)
    save_weights(run.weights, build_model(recipe.model, recipe.data.spec()).state_dict(), recipe=recipe)
    return save_pretrained(run.path, folder / "untrained")


def run(*words: str) -> Result:
    result = terminal.invoke(app, words)
    assert result.exit_code == 0, result.output
    return result


def refusal(*words: str) -> str:
    result = terminal.invoke(app, words)
    assert result.exit_code == ExitStatus.USER_ERROR, result.output
    (line,) = result.stderr.splitlines()
    return line


def test_every_command_for_runs_takes_a_name() -> None:
    shown = run("certify", "--pretrained", DIGITS, "--limit", "30").stdout
    assert "30 test images of digits" in shown
    assert "sample" not in shown
    assert "rows:    runs/bronet-digits-digits/certificate.csv" in shown
    assert "verified: 30 images" in run("verify", DIGITS).stdout
    pgd = ("--attack", "pgd", "--steps", "2", "--restarts", "1", "--limit", "5")
    assert "attack-pgd-l2-1_4.csv" in run("attack", DIGITS, "--eps", "1/4", *pgd).stdout
    assert "report.html" in run("report", DIGITS).stdout
    assert "digits/quickstart" in run("info", DIGITS).stdout
    assert "elsewhere" in run("info", "runs/bronet-digits-digits").stdout


def test_telling_about_a_name_writes_nothing(empty_folder: Path) -> None:
    assert DIGITS in run("info", DIGITS).stdout
    assert DIGITS in run("info").stdout
    assert list(empty_folder.iterdir()) == []


def test_without_the_data_set_the_sample_is_certified_and_labelled(cifar10: Path) -> None:
    few = run("certify", "--pretrained", str(cifar10), "--out", "mine", "--limit", "40").stdout
    assert re.search(r"sample of 40 test images.* \+- 15 points", few)  # whatever share is right
    assert "verified: 40 images" in run("verify", "mine").stdout
    shown = run("certify", "--pretrained", str(cifar10), "--out", "mine").stdout
    assert "500 sample images of cifar10" in shown
    assert re.search(r"sample of 500 test images.* \+- 4 points", shown)
    assert not Path("mine/certificate.csv").exists()
    assert json.loads(Path("mine/certificate-sample.json").read_text())["split"] == "sample"
    assert read_evidence(Path("mine")).certificate.split == "sample"
    assert "sample" in run("report", "mine").stdout
    assert "sample" in Path("mine/report/report.html").read_text()


def test_a_place_that_is_named_must_hold_the_data_set(cifar10: Path) -> None:
    assert "cifar10 must be in elsewhere" in refusal(
        "certify", str(cifar10), "--out", "mine", "--data-dir", "elsewhere"
    )


def test_a_command_that_fails_leaves_no_copy_of_a_network(empty_folder: Path) -> None:
    for words in (
        ("certify", CIFAR, "--data-dir", "elsewhere"),
        ("certify", CIFAR, "--out", "a/b/c", "--data-dir", "elsewhere"),
        ("attack", CIFAR, "--data-dir", "elsewhere", "--attack", "pgd"),
        ("verify", DIGITS),
        ("report", DIGITS),
        ("report", DIGITS, "nowhere"),
        ("serve", DIGITS, "nowhere", "--port", "0"),
    ):
        refusal(*words)
        assert list(empty_folder.iterdir()) == [], words


def test_a_command_that_fails_leaves_an_earlier_copy_alone(empty_folder: Path) -> None:
    run("certify", DIGITS, "--limit", "5")
    before = {path: path.read_bytes() for path in empty_folder.rglob("*") if path.is_file()}
    refusal("certify", DIGITS, "--eps", "1/0")
    refusal("report", DIGITS, "nowhere")
    assert {path: path.read_bytes() for path in empty_folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("command", ["certify", "verify", "attack", "serve", "train"])
def test_every_command_that_may_be_told_to_download_can_be(command: str) -> None:
    assert "--download" in run(command, "--help").stdout


def test_a_run_or_a_name_and_not_both() -> None:
    assert "either RUN or --pretrained" in refusal("certify")
    assert "either RUN or --pretrained" in refusal("certify", DIGITS, "--pretrained", DIGITS)


def test_a_damaged_record_is_refused(empty_folder: Path) -> None:
    trained = train_tiny_run(empty_folder / "run")
    (trained / "record.json").write_text("[]")
    assert "record.json must hold" in refusal("info", str(trained))


@pytest.mark.parametrize(
    ("typed", "published"),
    [
        ("bronet train a/b --out /tmp/x/run --seed 1", "bronet train a/b --out run --seed 1"),
        ("bronet train a/b --out=/tmp/x", "bronet train a/b --out=x"),
        ("bronet certify '/home/me/run' --eps 36/255", "bronet certify 'run' --eps 36/255"),
        ("bronet certify runs/a --data-dir ../data --eps 1/4", "bronet certify runs/a --data-dir ../data --eps 1/4"),
        (r"bronet certify C:\Users\me\run", "bronet certify run"),
    ],
)
def test_absolute_paths_become_their_last_part(typed: str, published: str) -> None:
    assert published_text(typed) == published
