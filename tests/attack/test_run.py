"""Attacks on runs: judged in float64, resumable, and fatal to a certificate that is false."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from attacks import ATTACK
from bronet import BronetError, prove
from bronet.attack.judge import CertificateBrokenError
from bronet.attack.run import Target, attack_run, finished
from bronet.attack.search import autoattack
from bronet.certificates.run import certify_run
from bronet.cli import ExitStatus, app
from bronet.data import load_images
from bronet.recipe import override, to_text
from bronet.records import write_rows
from bronet.report.evidence import read_evidence
from bronet.run.attack_rows import AttackPlan, AttackRow, read_attack, read_attack_rows
from bronet.run.certificate import Row, file_hash, read_certificate_rows
from bronet.run.folder import open_run
from bronet.run.weights import load_model
from certificates import edit_certificate
from lab.publish import publish
from tiny_run import train_tiny_run

IMAGES = 24
HEADER = "index,label,prediction,found,robust,l2,linf,radius"

pytestmark = pytest.mark.usefixtures("one_thread")
PLAN = AttackPlan(attack="pgd", eps="1/4", steps=8, restarts=2, batch_size=8)
NAME = PLAN.files(Path()).facts.stem


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = train_tiny_run(tmp_path_factory.mktemp("attack") / "run")
    certify_run(folder, eps=("1/4",), limit=IMAGES)
    return folder


@pytest.fixture
def copy(certified: Path, tmp_path: Path) -> Path:
    return shutil.copytree(certified, tmp_path / "run")


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_every_point_is_in_the_ball_and_accuracies_are_in_order(copy: Path, norm: str) -> None:
    plan = AttackPlan(attack="pgd", norm="l2" if norm == "l2" else "linf", eps="8/255", steps=5, restarts=2)
    result = attack_run(copy, plan, limit=IMAGES)
    facts = json.loads(result.path.with_suffix(".json").read_text())
    assert facts["certified_accuracy"] <= facts["robust_accuracy"] <= facts["clean_accuracy"]
    for row in result.rows:
        assert (row.l2 if norm == "l2" else row.linf) <= 8 / 255
        assert not row.refutes
    assert read_attack_rows(result.path) == result.rows


def test_a_stopped_attack_goes_on_and_ends_with_the_same_rows(copy: Path, certified: Path, tmp_path: Path) -> None:
    whole = attack_run(shutil.copytree(certified, tmp_path / "whole"), PLAN, limit=IMAGES)

    def stop(done: int, _total: int) -> None:
        if done == PLAN.batch_size:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attack_run(copy, PLAN, limit=IMAGES, progress=stop)
    assert len(read_attack_rows(copy / f"{NAME}.csv")) == PLAN.batch_size
    facts = copy / f"{NAME}.json"
    facts.write_text(json.dumps(json.loads(facts.read_text()) | {"seconds": 1000.0}))
    attacked: list[int] = []
    assert attack_run(copy, PLAN, limit=IMAGES, progress=lambda done, _: attacked.append(done)).rows == whole.rows
    assert attacked == [16, 24]
    assert 1000 < json.loads(facts.read_text())["seconds"] < 1500, "the seconds of both parts"


def test_what_only_the_coarse_search_takes_for_broken_is_searched_again(
    certified: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(certified)
    model = load_model(run)
    images = load_images(run.recipe.data, "test", limit=IMAGES)
    target = Target(model, prove(model), images, {})
    plan = AttackPlan(attack="pgd", eps="2/5", steps=8, restarts=1)
    rows = target.attack(plan, torch.arange(IMAGES))
    correct = sum(row.prediction == row.label for row in rows)
    assert 0 < sum(row.robust for row in rows) < correct
    seen = {"coarse": 0, "fine": 0}

    def wrong(fine: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def coarse(pixels: Tensor) -> Tensor:
            seen["coarse"] += len(pixels)
            return -fine(pixels)

        return coarse

    monkeypatch.setattr("bronet.attack.run.in_half_precision", wrong)
    model.register_forward_hook(lambda _model, given, _logits: seen.update(fine=seen["fine"] + len(given[0])))
    again = target.attack(plan, torch.arange(IMAGES))
    assert 0 < seen["fine"] - seen["coarse"] < seen["coarse"]  # only images that the judge still sees as they were
    assert [row.robust for row in again] == [row.robust for row in rows]


def test_another_plan_does_not_go_on_from_these_rows(copy: Path) -> None:
    attack_run(copy, PLAN, limit=8)
    with pytest.raises(BronetError, match="was made with steps = 8, now it is 9; --overwrite starts anew"):
        attack_run(copy, replace(PLAN, steps=9), limit=8)
    assert len(attack_run(copy, replace(PLAN, steps=9), limit=8, overwrite=True).rows) == 8


def test_a_finished_attack_is_not_repeated_and_keeps_its_facts(copy: Path) -> None:
    finished = attack_run(copy, PLAN, limit=8, command="first")
    attacked: list[int] = []
    again = attack_run(copy, PLAN, limit=4, command="second", progress=lambda done, _: attacked.append(done))
    assert attacked == []
    assert again.rows == finished.rows
    assert again.facts == finished.facts == read_attack(copy / f"{NAME}.json")


def test_rows_that_were_to_be_overwritten_are_not_gone_on_from(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attack_run(copy, PLAN, limit=8)
    other = replace(PLAN, steps=9)

    def interrupted(*_: object) -> list[AttackRow]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Target, "attack", interrupted)
        with pytest.raises(KeyboardInterrupt):
            attack_run(copy, other, limit=8, overwrite=True)
    attacked: list[int] = []
    attack_run(copy, other, limit=8, progress=lambda done, _: attacked.append(done))
    assert attacked == [8]


def test_rows_without_their_facts_are_not_gone_on_from(copy: Path) -> None:
    attack_run(copy, PLAN, limit=8)
    (copy / f"{NAME}.json").unlink()
    with pytest.raises(BronetError, match=f"must have {NAME}.json beside it"):
        attack_run(copy, PLAN, limit=8)


def test_rows_and_claims_of_one_network_are_not_those_of_another_with_the_same_weights(copy: Path) -> None:
    attack_run(copy, PLAN, limit=8)
    run = open_run(copy)
    recipe = override(run.recipe, ["model.padding_mode=circular"])
    run.recipe_file.write_text(to_text(recipe))
    with pytest.raises(BronetError, match="was made with recipe_sha256"):
        attack_run(copy, PLAN, limit=8)
    images = load_images(recipe.data, "test", limit=8)
    proved = prove(load_model(open_run(copy))).certify(images.pixels(torch.arange(8), dtype=torch.float64))
    rows = attack_run(copy, PLAN, limit=8, overwrite=True).rows
    assert [row.radius for row in rows] == proved.radius.tolist()
    assert [row.radius for row in rows] != [row.radius for row in read_certificate_rows(copy / "certificate.csv")[:8]]


def test_an_attack_on_another_network_does_not_stand_beside_a_certificate(copy: Path) -> None:
    path = attack_run(copy, PLAN, limit=8).path.with_suffix(".json")
    facts = json.loads(path.read_text())
    assert [attack.plain() for attack in read_evidence(copy).attacks] == [facts]
    for key in ("weights_sha256", "recipe_sha256"):
        path.write_text(json.dumps(facts | {key: "other"}))
        with pytest.raises(BronetError, match=f"must be of the network that was certified, but {key} differs"):
            read_evidence(copy)
        with pytest.raises(BronetError, match=f"must be of the network that was certified, but {key} differs"):
            publish(copy, copy.with_name("results"))


LINE = "0,1,1,1,1,0.5,0.1,0.25"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([LINE, LINE], "index must be unique, got 0 again"),
        (["0,1,1,2,1,0.5,0.1,0.25"], "robust must be 0, got 1"),
        (["-1,1,1,1,1,0.5,0.1,0.25"], "at least 0"),
        (["0,1,1,1,1,0.5,0.1,nan"], "radius must be at least 0, got nan"),
        (["0,1,1,1"], "must have 8 values, got 4"),
        (["a" * 200_000], "field larger than field limit"),
    ],
)
def test_rows_that_cannot_be_right_are_refused(tmp_path: Path, lines: list[str], message: str) -> None:
    path = tmp_path / "attack.csv"
    path.write_text("\n".join([HEADER, LINE.replace("0,", "7,", 1), *lines]))
    with pytest.raises(BronetError, match=message):
        read_attack_rows(path)


def _exaggerate(folder: Path, factor: float) -> None:
    rows = read_certificate_rows(folder / "certificate.csv")
    write_rows(Row, folder / "certificate.csv", [replace(row, radius=row.radius * factor) for row in rows])
    edit_certificate(folder / "certificate.json", rows_sha256=file_hash(folder / "certificate.csv"))


def test_a_false_certificate_stops_the_attack_and_names_the_image(copy: Path) -> None:
    _exaggerate(copy, 100.0)
    words = [
        "attack",
        str(copy),
        "--attack",
        "pgd",
        "--eps",
        "3/2",
        "--steps",
        "10",
        "--restarts",
        "1",
        "--limit",
        "24",
    ]
    for _ in range(2):  # the second time the broken row is already there, and still counts
        result = CliRunner().invoke(app, words)
        assert result.exit_code == ExitStatus.BROKEN_CERTIFICATE
        line = result.stderr.splitlines()[-1]
        assert line.startswith("broken: image ")
        assert "a certificate is false" in line
    rows = read_attack_rows(copy / "attack-pgd-l2-3_2.csv")
    named = int(line.split()[2])
    assert next(row for row in rows if row.index == named).refutes


def test_several_radii_are_attacked_in_turn(copy: Path) -> None:
    words = ["attack", str(copy), "--attack", "pgd", "--steps", "2", "--restarts", "1", "--limit", "4"]
    result = CliRunner().invoke(app, [*words, "--eps", "1/10", "--eps", "1/5"])
    assert result.exit_code == 0
    for name in ("1_10", "1_5"):
        assert len(read_attack_rows(copy / f"attack-pgd-l2-{name}.csv")) == 4


def test_a_network_with_a_deliberately_false_bound_is_caught(copy: Path) -> None:
    run = open_run(copy)
    model = load_model(run).requires_grad_(False)
    images = load_images(run.recipe.data, "test", limit=IMAGES)
    honest = prove(model)
    first, layer, *rest = honest.nodes
    false = replace(layer, proved=replace(layer.proved, lipschitz=layer.proved.lipschitz / 20))
    before, after = honest.constants[:2], honest.constants[2:]
    lying = replace(honest, nodes=(first, false, *rest), constants=(*before, *(bound / 20 for bound in after)))
    plan = replace(PLAN, eps="2", steps=20)
    index = torch.arange(IMAGES)
    assert any(row.refutes for row in Target(model, lying, images, {}).attack(plan, index))
    assert not any(row.refutes for row in Target(model, honest, images, {}).attack(plan, index))


def test_a_certificate_of_other_weights_is_not_held_against_these(copy: Path) -> None:
    _exaggerate(copy, 100.0)
    edit_certificate(copy / "certificate.json", weights_sha256="other")
    assert len(attack_run(copy, replace(PLAN, eps="3/2"), limit=8).rows) == 8


def test_edited_claims_are_refused(copy: Path) -> None:
    rows = copy / "certificate.csv"
    rows.write_text(rows.read_text().replace("0.", "1.", 1))
    with pytest.raises(BronetError, match=r"certificate\.csv differs"):
        attack_run(copy, replace(PLAN, eps="3/2"), limit=8)


def test_a_certificate_that_cannot_be_read_is_to_be_made_again(copy: Path) -> None:
    (copy / "certificate.json").write_text("{")
    with pytest.raises(BronetError, match=r"certificate.json must be JSON.*; certify again"):
        attack_run(copy, PLAN, limit=8)


def test_empirical_below_certified_accuracy_is_refused() -> None:
    row = AttackRow(index=0, label=1, prediction=1, found=2, robust=False, l2=0.3, linf=0.1, radius=0.26)
    assert not row.refutes  # further away than the radius: some other budget
    with pytest.raises(CertificateBrokenError, match="empirical accuracy must be at least"):
        finished(ATTACK, [row], pixels=64)


def test_autoattack_breaks_what_can_be_broken(copy: Path) -> None:
    """With a ball this large the first of the four attacks breaks every image, and the others are skipped."""
    pytest.importorskip("pyautoattack")
    words = ["attack", str(copy), "--eps", "6/1", "--limit", "3"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "not broken, l2 6" in result.stdout
    rows = read_attack_rows(copy / "attack-autoattack-l2-6.csv")
    assert not any(row.robust for row in rows)
    assert all(row.l2 <= 6 for row in rows)


def test_autoattack_runs_with_three_classes() -> None:
    pytest.importorskip("pyautoattack")
    weight = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))

    def model(images: Tensor) -> Tensor:
        return images.flatten(1) @ weight.mT

    images = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    found = autoattack(model, images, model(images).argmax(dim=1), classes=3, norm="l2", eps=3.0, seed=0)
    assert (model(found).argmax(dim=1) != model(images).argmax(dim=1)).all()


def test_without_autoattack_the_message_says_how_to_get_it(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BronetError, match=r"pip install 'bronet\[attack\]', or choose --attack pgd"):
        attack_run(copy, AttackPlan())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eps": "0"}, "eps must be positive"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"seed": 10**20}, "seed must satisfy 0 <= seed < 2.63, got 1"),
    ],
)
def test_bad_plans_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(BronetError, match=message):
        AttackPlan(**changes)  # type: ignore[arg-type]
