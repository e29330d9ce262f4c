"""The documentation speaks of what exists: files, tests, and the tests that the tables name."""

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PATH = re.compile(r"`((?:src|tests|docs|results|examples)/[\w./-]+?)(?:::(\w+)(?:\[[^`]*\])?)?`")
TEST = re.compile(r"`(test_\w+)(?:\[[^`]*\])?`")


def pages() -> list[Path]:
    return [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_named_files_and_tests_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for path, test in PATH.findall(text):
        target = ROOT / path
        assert target.exists(), f"{page.name} names {path}"
        if test:
            assert f"def {test}(" in target.read_text(encoding="utf-8"), f"{page.name} names {path}::{test}"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_tests_named_alone_exist_somewhere(page: Path) -> None:
    source = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").glob("*.py"))
    for test in TEST.findall(page.read_text(encoding="utf-8")):
        assert f"def {test}(" in source or (ROOT / "tests" / f"{test}.py").exists(), f"{page.name} names {test}"


@pytest.mark.parametrize("name", ["h200-layer.csv", "h200-step.csv", "cpu-layer.csv"])
def test_the_speed_page_shows_every_committed_timing(name: str) -> None:
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    with (ROOT / "results" / "bench" / name).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows
    for row in rows:
        assert f"{float(row['median_ms']):.2f} ms" in page, row


def test_every_item_of_the_paper_map_has_a_file_and_a_test() -> None:
    lines = (ROOT / "docs" / "paper_map.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ") and not line.startswith(("| item", "|---"))]
    assert len(rows) > 20
    for row in rows:
        paths = [path for path, _ in PATH.findall(row)]
        assert any(path.startswith("src/") for path in paths), row
        assert any(path.startswith("tests/") for path in paths), row
