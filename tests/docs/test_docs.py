"""The documentation speaks of what exists: files, tests, and the tests that the tables name."""

import csv
import re
import statistics
from pathlib import Path

import pytest

from bronet.bench.comparison import ComparedRow
from bronet.records import read_rows
from lab.bench.published import published_times

ROOT = Path(__file__).parents[2]
PATH = re.compile(r"`((?:src|lab|tests|docs|results|examples)/[\w./-]+?)(?:::(\w+)(?:\[[^`]*\])?)?`")
TORCHLIP = "torchlip spectral"
TIMES = ("train_seconds", "inference_seconds")
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
    source = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("*.py"))
    for test in TEST.findall(page.read_text(encoding="utf-8")):
        assert f"def {test}(" in source or any((ROOT / "tests").rglob(f"{test}.py")), f"{page.name} names {test}"


@pytest.mark.parametrize("name", ["h200-layer.csv", "h200-step.csv", "cpu-layer.csv"])
def test_the_speed_page_shows_every_committed_timing(name: str) -> None:
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    with (ROOT / "lab" / "results" / "bench" / name).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows
    for row in rows:
        assert f"{float(row['median_ms']):.2f} ms" in page, row


def test_the_speed_page_shows_the_published_times_and_how_much_faster_ours_are() -> None:
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    with (ROOT / "lab" / "results" / "bench" / "h200-step.csv").open(encoding="utf-8", newline="") as file:
        ours = {row["subject"]: float(row["median_ms"]) for row in csv.DictReader(file)}
    assert len(published_times()) == 5
    for (recipe, kind), theirs in published_times().items():
        (line,) = (line for line in page.splitlines() if line.startswith(f"| {recipe}, {kind}, "))
        mine = ours[f"{recipe}, {kind}"]
        assert line.split(" | ")[1:4] == [f"{theirs:g} ms", f"{mine:.2f} ms", f"{theirs / mine:.1f}"]


def clock_ms(name: str) -> dict[str, dict[str, float]]:
    """Return the milliseconds on the clock by work and contender."""
    times: dict[str, dict[str, float]] = {}
    for row in read_rows(ComparedRow, ROOT / "lab" / "results" / "bench" / name, advice=""):
        times.setdefault(row.work, {})[row.contender] = row.ms
    return times


def test_the_speed_page_sets_a_cpu_beside_others_as_the_committed_rows_do() -> None:
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    before, now = clock_ms("cpu-compared-before.csv"), clock_ms("cpu-compared.csv")
    published = clock_ms("cpu-published.csv")
    assert len(now) > 10
    for work, times in now.items():
        others = [before.get(work, {}), times, published.get(work, {})]
        names = ["plain", "plain", "published"]
        ratios = [row[name] / row["bronet"] if row else None for row, name in zip(others, names, strict=True)]
        ratios += [times[name] / times["bronet"] if name in times else None for name in ("orthogonium AOC", TORCHLIP)]
        cells = ["–" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
        assert f"| {work} | {times['bronet']:.1f} ms | {' | '.join(cells)} |" in page


def certification_seconds(name: str) -> dict[str, float]:
    """Return the median seconds of proof and images by the number of images."""
    times: dict[str, list[float]] = {}
    with (ROOT / "lab" / "results" / "bench" / name).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            times.setdefault(row["shape"].partition(",")[0], []).append(float(row["median_ms"]) / 1000)
    return {images: statistics.median(seconds) for images, seconds in times.items()}


def test_the_speed_page_tells_what_certificates_take_as_the_committed_rows_do() -> None:
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    now, before = certification_seconds("cpu-certify.csv"), certification_seconds("cpu-certify-before.csv")
    assert now.keys() == before.keys() == {"1000 images", "10000 images"}
    for images, seconds in now.items():
        assert f"| {images} | {seconds:.1f} s | {before[images]:.1f} s | {before[images] / seconds:.2f} |" in page


def test_the_rivals_page_shows_the_committed_comparison() -> None:
    page = (ROOT / "docs" / "rivals.md").read_text(encoding="utf-8")
    assert (ROOT / "lab" / "results" / "bench" / "equal-budget" / "equal-budget.md").read_text(encoding="utf-8") in page
    with (ROOT / "lab" / "results" / "bench" / "layers" / "layers.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["size"], row["kernel"]) == ("32", "3")]
    for layer in {row["layer"] for row in rows}:
        (line,) = (line for line in page.splitlines() if line.startswith(f"| `{layer}` | ") and line.count(" / ") == 6)
        own = [row for row in rows if row["layer"] == layer]
        times = [" / ".join(f"{1000 * float(row[name]):.1f}" for row in own) for name in TIMES]
        assert line.split(" | ")[1:3] == times


def test_every_item_of_the_paper_map_has_a_file_and_a_test() -> None:
    lines = (ROOT / "docs" / "paper_map.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ") and not line.startswith(("| item", "|---"))]
    assert len(rows) > 20
    for row in rows:
        paths = [path for path, _ in PATH.findall(row)]
        assert any(path.startswith(("src/", "lab/")) for path in paths), row
        assert any(path.startswith("tests/") for path in paths), row
