"""A certificate is refused once a byte of what it speaks of has changed, or a claim does not come out again."""

import csv
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bronet import BronetError
from bronet.certificates.run import certify_run
from bronet.certificates.verify import verify_run
from bronet.cli import ExitStatus, app
from bronet.files import sealed
from bronet.records import write_rows
from bronet.report.evidence import read_evidence
from bronet.run.certificate import Row, file_hash, read_certificate_rows
from tiny_run import train_tiny_run

IMAGES = 60

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = train_tiny_run(tmp_path_factory.mktemp("verify") / "run")
    certify_run(folder, eps=("1/4",), limit=IMAGES, targeted=True)
    return folder


@pytest.fixture
def copy(certified: Path, tmp_path: Path) -> Path:
    return shutil.copytree(certified, tmp_path / "run")


def test_a_certificate_is_confirmed_and_nothing_is_written(certified: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in certified.iterdir()}
    for target in (certified, certified / "certificate.json"):
        result = verify_run(target)
        assert result.images == IMAGES
        assert 1e-7 <= result.largest_difference < 3e-7
    shown = CliRunner().invoke(app, ["verify", str(certified)])
    assert shown.exit_code == 0, shown.output
    assert f"verified: {IMAGES} images" in shown.stdout
    assert {path.name: path.stat().st_mtime_ns for path in certified.iterdir()} == before


def _flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _change_a_digit(path: Path) -> None:
    text = path.read_text()
    position = max(i for i, letter in enumerate(text) if letter.isdigit())
    path.write_text(text[:position] + str((int(text[position]) + 1) % 10) + text[position + 1 :])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("model.safetensors", _flip_last_byte),
        ("recipe.yaml", _change_a_digit),
        ("certificate.csv", _change_a_digit),
        ("targeted.csv", _change_a_digit),
        ("certificate.json", _change_a_digit),
    ],
)
def test_a_changed_byte_is_named_and_refused(copy: Path, name: str, change: Callable[[Path], None]) -> None:
    change(copy / name)
    result = CliRunner().invoke(app, ["verify", str(copy)])
    assert result.exit_code == ExitStatus.USER_ERROR
    (line,) = result.stderr.splitlines()
    assert name in line
    assert "differs" in line


def _resealed(folder: Path) -> None:
    """Make the hashes fit what was forged: a liar can do that too."""
    path = folder / "certificate.json"
    facts = json.loads(path.read_text())
    facts["rows_sha256"] = file_hash(folder / "certificate.csv")
    facts["targeted_sha256"] = file_hash(folder / "targeted.csv")
    path.write_text(json.dumps(sealed(facts), indent=2))


def test_a_radius_that_was_made_up_is_refused_whatever_the_hashes_say(copy: Path) -> None:
    rows = read_certificate_rows(copy / "certificate.csv")
    rows[7] = type(rows[7])(**{**rows[7].__dict__, "radius": rows[7].radius * 1.001 + 1e-6})
    write_rows(Row, copy / "certificate.csv", rows)
    _resealed(copy)
    with pytest.raises(BronetError, match="radius of image 7 differs"):
        verify_run(copy)


def test_a_prediction_that_was_made_up_is_refused(copy: Path) -> None:
    rows = read_certificate_rows(copy / "certificate.csv")
    wrong = (rows[3].prediction + 1) % 10
    rows[3] = type(rows[3])(**{**rows[3].__dict__, "prediction": wrong, "correct": wrong == rows[3].label})
    write_rows(Row, copy / "certificate.csv", rows)
    _resealed(copy)
    with pytest.raises(BronetError, match="prediction of image 3 differs"):
        verify_run(copy)


def _margin_of_nan(folder: Path) -> None:
    rows = read_certificate_rows(folder / "certificate.csv")
    rows[2] = replace(rows[2], margin=float("nan"))
    write_rows(Row, folder / "certificate.csv", rows)


def _far_from_class_four(folder: Path) -> None:
    path = folder / "targeted.csv"
    lines = [line.split(",") for line in path.read_text().splitlines()]
    lines[3][2 + (4 if lines[3][1] != "4" else 5)] = "9999.0"
    path.write_text("\n".join(",".join(line) for line in lines) + "\n")


def _classes_by_other_names(folder: Path) -> None:
    path = folder / "targeted.csv"
    names = {"class_3": "class_4", "class_4": "class_3"}
    header, *lines = path.read_text().splitlines()
    columns = ",".join(names.get(name, name) for name in header.split(","))
    path.write_text("\n".join([columns, *lines]) + "\n")


def _smaller_constant(folder: Path) -> None:
    path = folder / "certificate.json"
    facts = json.loads(path.read_text())
    facts["layers"][1]["lipschitz"] *= 0.9
    path.write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("forge", "words"),
    [
        (_margin_of_nan, "margin of image 2 differs, found .*, recorded nan"),
        (_classes_by_other_names, "line 1: header must be index,prediction,class_0,.*, got .*class_4,class_3"),
        (_far_from_class_four, "radius of image 2 towards class . differs, found .*, recorded 9999.0"),
        (_smaller_constant, "lipschitz of stem.linear differs, found 2.*, recorded 2"),
    ],
)
def test_what_was_made_up_is_refused_though_resealed(copy: Path, forge: Callable[[Path], None], words: str) -> None:
    forge(copy)
    _resealed(copy)
    with pytest.raises(BronetError, match=words):
        verify_run(copy)


def test_other_images_are_refused(copy: Path) -> None:
    facts = json.loads((copy / "certificate.json").read_text())
    for kind in ("csv", "json"):
        (copy / f"certificate.{kind}").rename(copy / f"certificate-train.{kind}")
    (copy / "targeted.csv").rename(copy / "targeted-train.csv")
    forged = copy / "certificate-train.json"
    forged.write_text(json.dumps(sealed({**facts, "split": "train"})))
    with pytest.raises(BronetError, match="images of digits differs"):
        verify_run(forged)


def test_a_folder_without_a_certificate_says_what_to_do(copy: Path) -> None:
    (copy / "certificate.json").unlink()
    with pytest.raises(BronetError, match="run `bronet certify` first"):
        verify_run(copy)
    (copy / "certificate.json").write_text("{}")
    with pytest.raises(BronetError, match=r"seal of .*certificate\.json differs, .* certify again"):
        verify_run(copy)


def test_targeted_radii_have_the_radius_as_their_least(certified: Path) -> None:
    with (certified / "targeted.csv").open() as file:
        lines = list(csv.DictReader(file))
    for line, row in zip(lines, read_certificate_rows(certified / "certificate.csv"), strict=True):
        radii = [float(line[f"class_{j}"]) for j in range(10)]
        assert min(radii) == row.radius
        assert radii[row.prediction] == float("inf")


def test_the_facts_say_what_soundness_cost(certified: Path) -> None:
    facts = json.loads((certified / "certificate.json").read_text())
    assert abs(facts["soundness_cost"]["relative_median"]) < 0.01
    assert 0 < facts["rounding"]["median"] <= facts["rounding"]["worst"] < 1e-9
    assert facts["pixels"] == 64
    product = 1.0
    for layer in facts["layers"]:
        product *= layer["lipschitz"]
    assert facts["lipschitz"] == pytest.approx(product)


def test_certifying_again_without_targets_removes_the_old_ones(copy: Path) -> None:
    certify_run(copy, limit=5)
    assert not (copy / "targeted.csv").exists()
    assert verify_run(copy).images == 5


def test_a_report_takes_no_rows_but_those_of_the_certificate(copy: Path) -> None:
    read_evidence(copy)
    rows = read_certificate_rows(copy / "certificate.csv")
    write_rows(Row, copy / "certificate.csv", rows[::-1])
    with pytest.raises(BronetError, match=r"certificate\.csv differs"):
        read_evidence(copy)


def test_weights_that_change_while_they_are_certified_have_no_certificate(copy: Path) -> None:
    before = (copy / "certificate.json").read_bytes()
    with pytest.raises(BronetError, match="must not change while it is certified"):
        certify_run(copy, limit=5, progress=lambda *_: _flip_last_byte(copy / "model.safetensors"))
    assert (copy / "certificate.json").read_bytes() == before
