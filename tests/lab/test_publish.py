"""Publishing: nothing that does not hold, nothing that belongs to one machine, and a card beside published weights."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from attacks import ATTACK, finished, write_attack_facts
from bronet.certificates.run import certify_run
from bronet.cli import ExitStatus
from bronet.files import SEAL, sealed
from bronet.pretrained import find_network, load_pretrained, save_pretrained
from bronet.pretrained.places import published_folder, read_manifest
from bronet.report.evidence import read_evidence
from lab.commands import app
from lab.publish import publish, round_run
from tiny_run import train_tiny_run

pytestmark = pytest.mark.usefixtures("one_thread")
terminal = CliRunner()


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> Result:
    result = terminal.invoke(app, words)
    assert result.exit_code == 0, result.output
    return result


def refusal(*words: str) -> str:
    result = terminal.invoke(app, words)
    assert result.exit_code == ExitStatus.USER_ERROR, result.output
    (line,) = result.stderr.splitlines()
    return line


def test_publishing_needs_rounded_weights_and_then_writes_evidence_without_machine_paths(empty_folder: Path) -> None:
    trained = train_tiny_run(empty_folder / "run")
    words = ("publish", str(trained), "--results", "results/row", "--pretrained", "tiny/digits")
    assert "must be certified on its test split" in refusal(*words)
    certify_run(trained, limit=20)
    assert "must be of rounded weights" in refusal(*words)
    assert not Path("results").exists()
    assert "must be model/digits" in refusal(*words[:-1], "../x")

    certify_run(round_run(trained, "rounded"), limit=20)
    record = json.loads(Path("rounded/record.json").read_text())
    record["command"] = f"bronet train digits/quickstart --out {empty_folder}/runs/x --set train.epochs=3"
    Path("rounded/record.json").write_text(json.dumps(sealed(record)))
    written = publish("rounded", "results/row", pretrained="tiny/digits", package=empty_folder / "home")
    assert written == [Path("results/row"), empty_folder / "home" / "tiny" / "digits"]
    card = (written[1] / "README.md").read_text()
    assert "# tiny/digits" in card
    assert "On 20 test images of digits" in card
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
    certify_run(round_run(train_tiny_run(empty_folder / "run"), "rounded"), limit=20)
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
    certify_run(trained, limit=20)
    words = ("publish", str(trained), "--overwrite", "--results")
    Path("file").touch()
    for place in (str(trained), "file"):
        assert "--results must be a folder other than the run's" in refusal(*words, place)
    write_attack_facts(trained, finished(ATTACK, 5, clean=0.8, robust=0.6, certified=0.4))
    assert "must have its rows in attack-pgd-l2-1_4.csv" in refusal(*words, "results")
    (trained / "attack-pgd-l2-1_4.json").write_text("{")
    assert "attack-pgd-l2-1_4.json must be JSON, but Expecting" in refusal(*words, "results")
    assert not Path("results").exists()


def test_a_certificate_that_was_touched_is_not_published(empty_folder: Path) -> None:
    trained = train_tiny_run(empty_folder / "run")
    certify_run(trained, limit=20)
    rows = trained / "certificate.csv"
    rows.write_text(rows.read_text().replace(",1,", ",1, ", 1))
    assert "certificate.csv differs" in refusal("publish", str(trained), "--results", "results/row")
    assert not Path("results").exists()


def test_rounding_gives_the_weights_of_a_saved_network_and_a_record_that_says_so(empty_folder: Path) -> None:
    trained = train_tiny_run(empty_folder / "run")
    assert "bronet certify rounded" in run("round", str(trained), "--out", "rounded").stdout
    saved = find_network(save_pretrained(trained, "saved")).weights
    assert Path("rounded/model.safetensors").read_bytes() == saved.read_bytes()
    assert "bf16" in json.loads(Path("rounded/record.json").read_text())["weights"]
    assert refusal("round", str(trained), "--out", "rounded").endswith("already holds a run; choose another")


def test_rounding_that_fails_or_is_interrupted_leaves_nothing(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    trained = train_tiny_run(empty_folder / "run")
    with monkeypatch.context() as patched:
        patched.setattr("lab.publish.save_rounded", interrupted)
        with pytest.raises(KeyboardInterrupt):
            round_run(trained, "rounded")
    (trained / "record.json").write_text("[]")
    assert "record.json must hold" in refusal("round", str(trained), "--out", "rounded")
    assert not Path("rounded").exists()
