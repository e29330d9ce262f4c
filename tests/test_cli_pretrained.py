"""The command line on pretrained networks: a name wherever a run is wanted, and the sample labelled as one."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from attacks import ATTACK, finished, write_attack_facts
from bronet.cli import app
from bronet.cli.exit_status import ExitStatus
from bronet.models import build_model
from bronet.pretrained import load_pretrained, round_run, save_pretrained
from bronet.pretrained.places import published_folder, read_manifest
from bronet.pretrained.publish import publish
from bronet.pretrained.saving import published_text
from bronet.recipe import named_recipe, override
from bronet.report.evidence import read_evidence
from bronet.run.certificate import SEAL, sealed
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
    assert "sample of 40 test images, not of the test set; +- 15 points or less" in few  # whatever share is right
    assert "verified: 40 images" in run("verify", "mine").stdout
    shown = run("certify", "--pretrained", str(cifar10), "--out", "mine").stdout
    assert "500 sample images of cifar10" in shown
    assert "numbers of a sample of 500 test images, not of the test set; +- 4 points or less" in shown
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


def test_publishing_needs_rounded_weights_and_then_writes_evidence_without_machine_paths(empty_folder: Path) -> None:
    trained = train_tiny_run(empty_folder / "run")
    words = ("publish", str(trained), "--results", "results/row", "--pretrained", "tiny/digits")
    assert "must be certified on its test split" in refusal(*words)
    run("certify", str(trained), "--limit", "20")
    assert "must be of rounded weights" in refusal(*words)
    assert not Path("results").exists()
    assert "must be model/digits" in refusal(*words[:-1], "../x")

    run("round", str(trained), "--out", "rounded")
    run("certify", str(empty_folder / "rounded"), "--limit", "20")
    record = json.loads(Path("rounded/record.json").read_text())
    record["command"] = f"bronet train digits/quickstart --out {empty_folder}/runs/x --set train.epochs=3"
    Path("rounded/record.json").write_text(json.dumps(record))
    written = publish("rounded", "results/row", pretrained="tiny/digits", package=empty_folder / "home")
    assert written == [Path("results/row"), empty_folder / "home" / "tiny" / "digits"]
    names = {path.name for path in Path("results/row").iterdir()}
    assert names == {"recipe.yaml", "log.jsonl", "record.json", "certificate.csv", "certificate.json"}
    for path in Path("results/row").iterdir():
        assert str(empty_folder) not in path.read_text(), path
    facts = json.loads(Path("results/row/certificate.json").read_text())
    assert sealed(facts)[SEAL] == facts[SEAL]
    assert json.loads(Path("results/row/record.json").read_text())["command"].endswith("--out x --set train.epochs=3")
    assert read_evidence(Path("results/row")).rows == read_evidence(Path("rounded")).rows
    assert "with files in it" in refusal("publish", "rounded", "--results", "results/row")
    Path("results/row/attack-old.csv").write_text("of an earlier run")
    run("publish", "rounded", "--results", "results/row", "--overwrite")
    assert {path.name for path in Path("results/row").iterdir()} == names


def test_a_large_network_goes_to_the_checkout_and_into_the_manifest(empty_folder: Path) -> None:
    round_run(train_tiny_run(empty_folder / "run"), "rounded")
    run("certify", "rounded", "--limit", "20")
    package, weights = empty_folder / "package", empty_folder / "checkout" / "weights"
    results, name = empty_folder / "checkout" / "lab" / "results" / "tiny", "tiny/digits"

    def published(**more: int) -> list[Path]:
        return publish("rounded", results, pretrained=name, overwrite=True, package=package, weights=weights, **more)

    assert published()[1] == package / name
    shutil.rmtree(package)
    for _ in range(2):  # the second time it is replaced
        assert published(largest_in_package=1000) == [results, weights / name, package / "manifest.json"]
    (network,) = read_manifest(package / "manifest.json").networks
    assert (network.name, network.results) == (name, "lab/results/tiny")
    assert [file.name for file in network.files] == ["README.md", "model.safetensors", "config.json"]
    assert published_folder(network, [package, weights]) == weights / name
    load_pretrained(weights / name)
    assert not (package / "tiny").exists()


def test_evidence_that_is_damaged_or_has_no_place_is_one_line_and_leaves_everything(empty_folder: Path) -> None:
    trained = train_tiny_run(empty_folder / "run")
    run("certify", str(trained), "--limit", "20")
    words = ("publish", str(trained), "--overwrite", "--results")
    Path("file").touch()
    for place in (str(trained), "file"):
        assert "--results must be a folder other than the run's" in refusal(*words, place)
    write_attack_facts(trained, finished(ATTACK, 5, clean=0.8, robust=0.6, certified=0.4))
    assert "must have its rows in attack-pgd-l2-1_4.csv" in refusal(*words, "results")
    (trained / "attack-pgd-l2-1_4.json").write_text("{")
    assert "attack-pgd-l2-1_4.json must be JSON, but Expecting" in refusal(*words, "results")
    (trained / "record.json").write_text("[]")
    for command in (("round", str(trained), "--out", "rounded"), ("info", str(trained))):
        assert "record.json must hold" in refusal(*command)
    assert not Path("results").exists()
    assert not Path("rounded").exists()


def test_a_certificate_that_was_touched_is_not_published(empty_folder: Path) -> None:
    trained = train_tiny_run(empty_folder / "run")
    run("certify", str(trained), "--limit", "20")
    rows = trained / "certificate.csv"
    rows.write_text(rows.read_text().replace(",1,", ",1, ", 1))
    assert "certificate.csv differs" in refusal("publish", str(trained), "--results", "results/row")
    assert not Path("results").exists()


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
