"""Our short schedules beside published rows, and every AutoAttack below Tables 10 and 11."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from attacks import ATTACK, finished, write_attack_facts
from bronet.attack.run import attack_run
from bronet.certificates.run import certify_run
from bronet.errors import BronetError
from bronet.recipe import named_recipe
from bronet.records import write_rows
from bronet.report.evidence import read_evidence
from bronet.report.table import joined
from bronet.run.attack_rows import AttackPlan, AttackRow, read_attack_rows
from bronet.run.certificate import Row, read_certificate_rows
from certificates import write_certificate
from lab.commands import app
from lab.publish import publish
from lab.tables.fill import every_run
from lab.tables.paper import paper_table, reproduced
from lab.tables.published import published_runs
from lab.tables.speedrun import RECIPES, speedrun_table
from markdown_cells import cells_of
from published_rows import publish_rows
from tiny_run import train_tiny_run

IMAGES = 3
FAST = RECIPES["cifar10"]
BUDGET = named_recipe(FAST).loss.emma_eps
SEEDS = {0: (0.81, 0.70, 0.56, 0.41), 1: (0.82, 0.70, 0.56, 0.43)}
pytestmark = pytest.mark.usefixtures("one_thread")
terminal = CliRunner()


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    recipe = named_recipe(FAST)
    for seed, shares in SEEDS.items():
        mine = replace(recipe, train=replace(recipe.train, seed=seed))
        publish_rows(folder / "cifar10-bronet-m-fast" / f"seed-{seed}", mine, shares, seconds=1152.0)
    return folder


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run, attacked for real: by PGD in both norms and by AutoAttack in a ball so large that it is soon done."""
    pytest.importorskip("pyautoattack")
    folder = train_tiny_run(tmp_path_factory.mktemp("attacked") / "run")
    certify_run(folder, limit=50)
    for norm in ("l2", "linf"):
        plan = AttackPlan(attack="pgd", norm="l2" if norm == "l2" else "linf", eps="8/255", steps=2, restarts=1)
        attack_run(folder, plan, limit=IMAGES)
    attack_run(folder, AttackPlan(eps="6"), limit=IMAGES)
    return folder


def test_ours_stands_beside_the_paper_and_later_work(fast: Path) -> None:
    table = speedrun_table("cifar10", published_runs(fast))
    assert cells_of(table, f"`{FAST}`, {BUDGET}")[1:] == ["ours, proved", "81.5 / 70.0 / 56.0 / 42.0", "–"]
    assert cells_of(table, "BRONet-M (+LA) (37M)")[3] == "+0.3 / +0.3 / +0.4 / +1.3"
    assert cells_of(table, "LipNeXt-64M")[2:] == ["81.5 / 71.2 / 59.2 / 45.9", "+0.0 / -1.2 / -3.2 / -3.9"]
    assert re.search(rf"{BUDGET}: .* seeds 0, 1; .* 0\.7 / 0\.0 / 0\.0 / 1\.4\.", table)
    assert re.search(r"`cifar10-bronet-m-fast/seed-0`: training 19 min 12 s .* 10,000 images 1\.5 s", table)


def test_another_budget_or_length_is_another_point_and_any_other_change_is_none(tmp_path: Path) -> None:
    recipe = named_recipe(FAST)
    epochs = recipe.train.epochs + 7
    far = replace(recipe, loss=replace(recipe.loss, emma_eps="99/255"), train=replace(recipe.train, epochs=epochs))
    publish_rows(tmp_path / "far", far, (0.79, 0.69, 0.58, 0.46), seconds=60.0)
    publish_rows(tmp_path / "untaught", replace(far, loss=replace(far.loss, teacher=0.0)), (0.9,) * 4, seconds=60.0)
    table = speedrun_table("cifar10", published_runs(tmp_path))
    label = f"the same, 99/255, {epochs} epochs"
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:4]] == [f"`{FAST}`, {BUDGET}", label]
    assert cells_of(table, f"`{FAST}`, {BUDGET}")[1:] == ["ours", "not run", "–"]
    assert cells_of(table, label)[1:] == ["ours, proved", "79.0 / 69.0 / 58.0 / 46.0", "–"]
    assert table.splitlines()[0].split("|")[4].strip() == "99/255 minus this"
    assert cells_of(table, "LipNeXt-64M")[3] == "-2.5 / -2.2 / -1.2 / +0.1"
    assert "99/255: seed 0. `far`: training 1 min 0 s" in table
    assert "untaught" not in table


def test_a_difference_that_rounds_to_zero_has_no_minus() -> None:
    assert joined([-0.04, 0.04, -0.06], "+") == "+0.0 / +0.0 / -0.1"


def test_what_the_naive_way_would_have_reported_is_told(fast: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(fast / "cifar10-bronet-m-fast" / "seed-0", tmp_path / "only")
    assert "+0 / +0 / +0 images" in speedrun_table("cifar10", published_runs(tmp_path))
    rows = read_certificate_rows(folder / "certificate.csv")
    last = next(row for row in reversed(rows) if row.correct and row.radius < 108 / 255)
    changed = [replace(row, naive_radius=1.0) if row.index == last.index else row for row in rows]
    write_rows(Row, folder / "certificate.csv", changed)
    write_certificate(folder, read_evidence(fast / "cifar10-bronet-m-fast" / "seed-0").certificate)
    assert "+1 / +1 / +1 images" in speedrun_table("cifar10", published_runs(tmp_path))


def test_without_a_run_the_published_rows_stand_alone(fast: Path) -> None:
    table = speedrun_table("cifar100", published_runs(fast))
    assert cells_of(table, f"`cifar100/bronet-m-fast`, {BUDGET}")[1:] == ["ours", "not run"]
    assert cells_of(table, "BRONet-L (+LA) (68M)")[2:] == ["54.3 / 40.2 / 29.1 / 20.3"]
    assert "LipNeXt" not in table  # no numbers of it are at hand for this data set


def test_a_row_without_a_counterpart_is_listed_and_counts_as_no_row_of_the_paper(fast: Path) -> None:
    runs = published_runs(fast)
    assert cells_of(every_run(runs), "`cifar10-bronet-m-fast/seed-0`")[3] == "81.0 / 70.0 / 56.0 / 41.0"
    assert reproduced(runs).startswith("0 of the ")
    assert FAST not in paper_table(1, runs)


def test_one_seed_needs_no_spread(fast: Path, tmp_path: Path) -> None:
    shutil.copytree(fast / "cifar10-bronet-m-fast" / "seed-0", tmp_path / "only")
    assert f"{BUDGET}: seed 0. `only`: training" in speedrun_table("cifar10", published_runs(tmp_path))


def test_every_autoattack_is_listed_and_nothing_else_is_called_so(attacked: Path, tmp_path: Path) -> None:
    publish(attacked, tmp_path / "results" / "tiny")
    facts = json.loads((attacked / "attack-autoattack-l2-6.json").read_text())
    printed = terminal.invoke(app, ["tables", "10", "--results", str(tmp_path / "results")]).stdout
    cells = cells_of(printed, "`tiny`")
    assert cells[1:4] == ["`digits/quickstart`", "6", str(IMAGES)]
    keys = ("clean_accuracy", "certified_accuracy", "robust_accuracy")
    assert cells[4:8] == [*(f"{100 * facts[key]:.1f}" for key in keys), "0"]
    assert "the first 50 test images only" in cells[8]
    # In the other norm there was PGD only.
    assert "`tiny`" not in paper_table(11, published_runs(tmp_path / "results"))


def test_a_run_whose_certificate_was_broken_is_not_published(attacked: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(attacked, tmp_path / "run")
    rows = read_attack_rows(folder / "attack-autoattack-l2-6.csv")
    write_rows(AttackRow, folder / "attack-autoattack-l2-6.csv", [replace(row, radius=row.l2 + 1) for row in rows])
    with pytest.raises(BronetError, match="certificate was broken must not be published"):
        publish(folder, tmp_path / "results")
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("recipe", [FAST, "cifar10/lipconvnet-10-32"])
def test_attacks_on_networks_that_the_paper_did_not_attack_are_shown(recipe: str, tmp_path: Path) -> None:
    folder = publish_rows(tmp_path / "mine", named_recipe(recipe), (0.8, 0.7, 0.5, 0.4))
    l2, linf = replace(ATTACK, attack="autoattack", eps="72/255"), replace(ATTACK, attack="autoattack", eps="2/255")
    for plan in (l2, replace(linf, norm="linf")):
        write_attack_facts(folder, finished(plan, 1000, clean=0.8, robust=0.6, certified=0.5))
    runs = published_runs(tmp_path)
    expected = ["1,000", "80.0", "50.0", "60.0", "0", "–"]
    assert cells_of(paper_table(10, runs), "`mine`")[1:] == [f"`{recipe}`", "72/255", *expected]
    assert cells_of(paper_table(11, runs), "`mine`")[1:] == [f"`{recipe}`", "2/255", *expected]


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("attack-pgd-l2-8_255", {"attack": "autoattack"}, "named after its attack"),
        ("attack-pgd-l2-8_255", {"robust_accuracy": 0.123}, "robust_accuracy must be that of its rows"),
        ("attack-pgd-l2-8_255", {"robust_accuracy": float("nan")}, "robust_accuracy must be that of its rows"),
        ("attack-pgd-linf-8_255", {"certified_accuracy": 0.123}, "certified_accuracy must be that of its rows"),
        ("attack-autoattack-l2-6", {"certified_broken": 1}, "certified_broken must be that of its rows"),
    ],
)
def test_facts_that_are_not_those_of_the_rows_are_refused(
    attacked: Path, tmp_path: Path, name: str, changes: dict[str, object], reason: str
) -> None:
    folder = shutil.copytree(attacked, tmp_path / "run")
    read_evidence(folder)
    facts = json.loads((folder / f"{name}.json").read_text())
    (folder / f"{name}.json").write_text(json.dumps(facts | changes))
    with pytest.raises(BronetError, match=reason):
        read_evidence(folder)
