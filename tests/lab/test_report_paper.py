"""The paper's tables beside ours: computed from rows, compared only where the experiment is the same."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from attacks import ATTACK, finished, write_attack_facts
from bronet.cli import ExitStatus
from bronet.errors import BronetError
from bronet.run.certificate import compute_statistics
from lab.commands import app
from lab.recipes import table_recipe
from lab.tables.fill import BLOCK, filled
from lab.tables.leaderboard import leaderboard
from lab.tables.paper import all_tables, paper_table, reproduced
from lab.tables.published import PublishedRun, paper_rows, paper_tables, published_runs
from published_rows import publish_rows

LA = "cifar100/lipconvnet-10-32"
ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "docs/results.md", "docs/speedrun.md", "docs/leaderboard.md")]
SEEDS = {0: (0.480, 0.354, 0.245, 0.160), 1: (0.490, 0.354, 0.245, 0.162), 2: (0.491, 0.354, 0.245, 0.164)}
terminal = CliRunner()


def with_seed(name: str, seed: int) -> object:
    recipe = table_recipe(name)
    return replace(recipe, train=replace(recipe.train, seed=seed))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    for seed, shares in SEEDS.items():
        publish_rows(folder / f"la-{seed}", with_seed(LA, seed), shares)  # type: ignore[arg-type]
    publish_rows(folder / "ce", table_recipe(f"{LA}-ce"), (0.485, 0.341, 0.226, 0.144))
    short = table_recipe("cifar10/lipconvnet-10-32")
    short = replace(short, train=replace(short.train, epochs=10))
    publish_rows(folder / "short", short, (0.9, 0.8, 0.7, 0.6), images=100)
    attacked = publish_rows(folder / "attacked", table_recipe("cifar10/bronet-m"), (0.811, 0.699, 0.553, 0.404))
    plan = replace(ATTACK, attack="autoattack", eps="36/255")
    write_attack_facts(attacked, finished(plan, 1000, clean=0.8, robust=0.777, certified=0.7))
    return folder


@pytest.fixture(scope="module")
def runs(results: Path) -> list[PublishedRun]:
    return published_runs(results)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results with one run: soon read."""
    folder = tmp_path_factory.mktemp("one")
    publish_rows(folder / "ce", table_recipe(f"{LA}-ce"), (0.485, 0.341, 0.226, 0.144))
    return folder


def line_of(table: str, *words: str) -> list[str]:
    """Return the cells of the one line that has all words."""
    (line,) = (line for line in table.splitlines() if all(f" {word} " in line for word in words))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_seeds_are_averaged_and_their_spread_is_shown(runs: list[PublishedRun]) -> None:
    cells = line_of(paper_table(13, runs), "LA", "cifar100")
    assert cells[2:] == [
        "48.6 / 35.4 / 24.5 / 16.1",
        "48.7 / 35.4 / 24.5 / 16.2",
        "+0.1 / +0.0 / +0.0 / +0.1",
        "0.6 / 0.0 / 0.0 / 0.2",
        "0, 1, 2",
    ]


def test_what_was_not_run_says_so(runs: list[PublishedRun]) -> None:
    table = paper_table(13, runs)
    assert line_of(table, "LA", "tiny-imagenet")[3] == "not run"
    assert line_of(paper_table(1, runs), "AOL Large (136M)", "cifar10")[3] == "quoted"
    everything = all_tables([])
    trainable = [row for row in paper_rows() if row.recipe]
    assert everything.count("not run") == len(trainable)


def test_a_changed_recipe_or_a_part_of_the_test_set_is_no_run_of_a_row(runs: list[PublishedRun]) -> None:
    (short,) = (run for run in runs if run.folder == "short")
    assert short.remark == "changed: train.epochs; the first 100 test images only"
    table = paper_table(13, runs)
    assert line_of(table, "LA", "cifar10")[3] == "not run"
    shares = (short.statistics.clean_accuracy, *short.statistics.certified.values())
    numbers = " / ".join(f"{100 * share:.1f}" for share in shares)
    assert f"Not counted: `short`, {numbers} ({short.remark})." in table


def test_the_distribution_of_the_radius_is_table_6(runs: list[PublishedRun]) -> None:
    cells = line_of(paper_table(6, runs), "CE", "cifar100")
    (run,) = (run for run in runs if run.folder == "ce")
    radius = compute_statistics(run.evidence.rows, ()).radius
    assert cells[3] == f"{radius.median:.4f} / {radius.variance:.4f} / {radius.skewness:.4f}"
    assert (
        cells[4] == f"{radius.median - 0.2577:+.4f} / {radius.variance - 0.0732:+.4f} / {radius.skewness - 1.2114:+.4f}"
    )


def test_attacks_and_times_stand_in_their_columns(runs: list[PublishedRun]) -> None:
    cells = line_of(paper_table(10, runs), "BRONet-M", "cifar10")
    assert cells[3] == "81.1 / 69.9 / 55.3 / 40.4 / 77.7 / – / –"
    assert cells[4].endswith("/ +1.6 / – / –")
    assert "1,000 images attacked" in paper_table(10, runs)
    cells = line_of(paper_table(15, runs), "LipConvNet-10-32 BRO LA", "cifar100")
    assert cells[2].endswith("/ 17.3 / 0.9")
    assert cells[3].endswith("/ 3.0 / –")  # 600 seconds, 200 epochs
    assert cells[4].endswith("/ – / –")  # of another machine: no difference


@pytest.mark.parametrize("number", paper_tables())
def test_every_row_of_the_paper_is_printed_with_its_numbers(number: int) -> None:
    table = paper_table(number, [])
    assert len([line for line in table.splitlines() if line.startswith("| ")]) == len(paper_rows(number)) + 2
    for row in paper_rows(number):
        for value in (row.clean, *row.certified):
            assert value is None or f"{value:.1f}" in table or f"{value:.2f}" in table


def test_the_leaderboard_has_everybody_and_links_ours_to_recipe_and_rows(runs: list[PublishedRun]) -> None:
    table = leaderboard("cifar10", runs)
    for peer in ("LipNeXt-64M", "LipNeXt-256M", "AOL Large", "SLL X-Large", "CHORD-LiResNet", "BRONet-L (+LA)"):
        assert line_of(table, peer)[5] == "not claimed"
    ours = [line for line in table.splitlines() if " yes " in line]
    whole = [run for run in runs if run.whole and run.recipe.data.name == "cifar10"]
    assert len(ours) == len(whole) > 0
    for run in whole:
        (line,) = (line for line in ours if f"{run.folder}/recipe.yaml" in line)
        assert f"{run.folder}/rows.npz.xz" in line
        assert f"| {run.statistics.percents[1]:.1f} " in line
    at_36 = [float(line.split("|")[3]) for line in table.splitlines()[2:]]
    assert at_36 == sorted(at_36, reverse=True)


@pytest.mark.parametrize("number", [7, 8])
def test_tables_without_accuracies_are_pointed_to(number: int) -> None:
    assert f"Table {number}" in paper_table(number, [])
    assert ("bench layers" in paper_table(8, [])) == (number == 8) or number == 7


def test_the_summary_counts_what_is_missing(runs: list[PublishedRun]) -> None:
    text = reproduced(runs)
    assert line_of(text, f"`{LA}`")[1] == "4, 13, 15, 16"
    known = {row.recipe for row in paper_rows() if row.recipe and row.clean is not None}
    assert f"3 of the {len(known)} recipes" in text


@pytest.mark.parametrize(
    "what", ["reproduced", "runs", "tables", "table 6", "run la-0", "speedrun cifar10", "tuning x"]
)
def test_a_block_is_filled_and_filling_again_changes_nothing(runs: list[PublishedRun], what: str) -> None:
    page = f"by hand\n<!-- generated: {what} -->\nold numbers\n<!-- end -->\nby hand too\n"
    text = filled(page, runs)
    assert "old numbers" not in text
    assert text.startswith("by hand\n")
    assert text.endswith("by hand too\n")
    assert filled(text, runs) == text


@pytest.mark.parametrize("what", ["tabel 6", "run nowhere", "table x", "speedrun digits", "knob cifar10"])
def test_an_unknown_block_is_refused(runs: list[PublishedRun], what: str) -> None:
    with pytest.raises(BronetError, match="a block"):
        filled(f"<!-- generated: {what} -->\n<!-- end -->", runs)


def test_every_number_between_the_markers_of_a_page_comes_from_committed_rows(tmp_path: Path) -> None:
    """The pages, computed anew by the command in a process of its own, are the pages."""
    copies = [tmp_path / page.name for page in PAGES]
    for page, copy in zip(PAGES, copies, strict=True):
        assert BLOCK.search(page.read_text(encoding="utf-8")), page
        copy.write_text(BLOCK.sub(r"\g<start>\g<end>", page.read_text(encoding="utf-8")), encoding="utf-8")
    command = [sys.executable, "-m", "lab", "fill", *map(str, copies)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    for page, copy in zip(PAGES, copies, strict=True):
        assert copy.read_text(encoding="utf-8") == page.read_text(encoding="utf-8"), "run: make pages"


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.name)
def test_no_accuracy_stands_outside_of_the_markers_of_a_page_of_results(page: Path) -> None:
    by_hand = BLOCK.sub("", page.read_text(encoding="utf-8"))
    assert re.findall(r"\d+\.\d+(?: %| /)", by_hand) == []


def test_the_command_prints_fills_and_draws(one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = terminal.invoke(app, ["tables", "13", "--results", str(one)])
    assert table.stdout == paper_table(13, published_runs(one))
    page = tmp_path / "page.md"
    page.write_text("<!-- generated: table 13 -->\n<!-- end -->\n")
    assert terminal.invoke(app, ["fill", str(page), "--results", str(one)]).exit_code == 0
    assert table.stdout in page.read_text()
    for number in ("3", "12"):
        drawn = terminal.invoke(app, ["figure", number, "--results", str(one), "--out", "figures"])
        assert drawn.exit_code == 0, drawn.output
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {"figure-3.png", "figure-3.pdf", "figure-12.png", "figure-12.pdf"}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["tables", "99"], "table must be one of"),
        (["tables", "x"], "a valid integer, got 'x'"),
        (["tables", "1", "--results", "nowhere"], "--results must be a folder"),
        (["figure", "4"], "must be 3 or 12"),
        (["fill", "nowhere.md"], "could not read the page"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], reason: str, one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = words if "--results" in words else [*words, "--results", str(one)]
    result = terminal.invoke(app, given)
    assert result.exit_code == ExitStatus.USER_ERROR
    assert reason in result.stderr
    assert len(result.stderr.splitlines()) == 1
