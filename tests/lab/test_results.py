"""What is committed under lab/results is evidence: whole, sealed, and without paths of a machine."""

import re
import statistics
from pathlib import Path

import pytest

from bronet.recipe import from_text
from bronet.recipe.architecture import BRONetArchitecture
from bronet.records import read_rows
from bronet.run.attack_rows import read_attack_rows
from bronet.run.certificate import file_hash, read_certificate, read_certificate_rows
from lab.bench.lipnext import CONTESTS, ContestRow
from lab.packed import FILE, unpacked
from lab.tables.tuning import FILE as TUNING
from lab.tables.tuning import read_tuning

RESULTS = Path(__file__).parents[2] / "lab" / "results"
CERTIFICATES = sorted(RESULTS.rglob("certificate*.json"))
KINDS = ((read_certificate_rows, "certificate*.csv"), (read_attack_rows, "attack-*.csv"))
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|tmp|root|work|Users|mnt|data|scratch)/")


def test_there_is_evidence() -> None:
    assert RESULTS / "digits" / "certificate.json" in CERTIFICATES


@pytest.mark.parametrize("path", CERTIFICATES, ids=lambda path: str(path.relative_to(RESULTS)))
def test_a_published_certificate_is_sealed_and_speaks_of_the_files_beside_it(path: Path) -> None:
    certificate = read_certificate(path)
    with unpacked(path.parent) as run:
        assert file_hash(run / f"{path.stem}.csv") == certificate.rows_sha256
    recipe = path.parent / "recipe.yaml"
    assert file_hash(recipe) == certificate.recipe_sha256
    assert from_text(recipe.read_text(encoding="utf-8")).data.name == certificate.data


def test_ten_thousand_rows_weigh_little() -> None:
    for path in RESULTS.rglob(FILE):
        with unpacked(path.parent) as run:
            certified, attacked = (sum(len(read(file)) for file in run.glob(pattern)) for read, pattern in KINDS)
        assert path.stat().st_size <= (15 * certified + 25 * attacked) + 2000, path
    assert sum(path.stat().st_size for path in RESULTS.rglob("*") if path.is_file()) < 4_000_000


@pytest.mark.parametrize("suffix", ["json", "jsonl", "yaml", "md"])
def test_no_file_names_a_path_of_a_machine(suffix: str) -> None:
    for path in RESULTS.rglob(f"*.{suffix}"):
        assert not MACHINE_PATH.search(path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize("run", ["base", "little"])
def test_the_recipe_of_a_tuning_run_is_that_of_its_line(run: str) -> None:
    """Others change what they say of these two, so each can be trained again."""
    (row,) = (row for row in read_tuning(RESULTS / TUNING) if row.run == run)
    recipe = from_text((RESULTS / "speedrun" / f"{run}.yaml").read_text(encoding="utf-8"))
    assert isinstance(recipe.model, BRONetArchitecture)
    assert row.network == f"bronet, width {recipe.model.width}, depth {recipe.model.depth}"
    assert (row.images_held_out, row.epochs) == (recipe.data.held_out, recipe.train.epochs)
    assert row.changed == ""


@pytest.mark.parametrize("data", CONTESTS)
def test_the_page_of_lipnext_prints_the_means_of_its_rows(data: str) -> None:
    page = (RESULTS.parents[1] / "docs" / "lipnext.md").read_text(encoding="utf-8")
    rows = read_rows(ContestRow, RESULTS / "bench" / "lipnext" / f"{data}.csv", advice="restore it")
    assert {row.network for row in rows} == set(CONTESTS[data].networks)
    for network in CONTESTS[data].networks:
        own = [row for row in rows if row.network == network]
        means = (100 * statistics.mean(shares) for shares in zip(*(row.shares for row in own), strict=True))
        (line,) = (line for line in page.splitlines() if line.startswith(f"| {network} | {own[0].parameters:,} |"))
        assert f"| {' / '.join(f'{mean:.1f}' for mean in means)} |" in line
        assert line.endswith(f"| {', '.join(str(row.seed) for row in own)} |")
