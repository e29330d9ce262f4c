"""What the pages show is run: every block of code of the README and the documentation, page by page."""

import csv
import re
import subprocess
from pathlib import Path

import pytest

from packaged import clean_environment
from page_session import PAGES, ROOT, RUN, SHOWN, Block, Session, blocks

PROMISED_ACCURACY = {"README.md": ("quickstart", 0.95), "own_data.md": ("shapes", 0.9), "own_layer.md": ("chain", 0.7)}
"""Runs that a page makes, and the clean accuracy that it leads one to expect of them."""
pytestmark = pytest.mark.usefixtures("one_thread")

INDENTED_COMMAND = re.compile(r"^ {4,}(?:bronet|python|torchrun|pip|make|\.venv/bin/\w+) ", re.M)
SESSIONS = [page for page in PAGES if any(block.runs for block in blocks(page))]


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory, wheel_python: Path) -> Path:
    """The quick start's run, made once: by the command of the installed wheel, outside the tree."""
    folder = tmp_path_factory.mktemp("quickstart")
    command = [str(wheel_python), "-W", "error", "-m", "bronet", "quickstart"]
    environment = clean_environment(wheel_python)
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return folder / "runs" / "quickstart"


@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: page.name)
def test_a_page_can_be_followed(
    page: Path, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(tmp_path, lambda: request.getfixturevalue("quickstart"), monkeypatch)
    for block in blocks(page):
        if block.runs:
            session.follow(block)
    if page.name in PROMISED_ACCURACY:
        run, promised = PROMISED_ACCURACY[page.name]
        with (tmp_path / "runs" / run / "certificate.csv").open(encoding="utf-8", newline="") as file:
            correct = [int(row["correct"]) for row in csv.DictReader(file)]
        assert sum(correct) >= promised * len(correct)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_code_is_known(page: Path) -> None:
    found = blocks(page)
    assert len(re.findall(r"^ *```", page.read_text(encoding="utf-8"), re.M)) == 2 * len(found)
    assert {block.language for block in found} <= RUN | SHOWN
    assert all(block.reason.strip() for block in found if block.reason is not None)
    assert all((ROOT / path).is_file() for block in found for path in block.shown_files)
    assert INDENTED_COMMAND.findall(page.read_text(encoding="utf-8")) == []


def test_most_blocks_are_run() -> None:
    found = [block for page in PAGES for block in blocks(page) if block.language in RUN and not block.shown_files]
    assert sum(block.runs for block in found) >= len(found) / 2


def test_a_session_notices_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(tmp_path, lambda: tmp_path, monkeypatch)
    for block in (
        Block("bash", "bronet info runs/nowhere\n", None),
        Block("bash", "false\n", None),
        Block("console", "$ bronet info runs/nowhere\nerror: nothing of that kind\n", None),
        Block("console", "$ bronet recipes show digits/quickstart\n", None),
    ):
        with pytest.raises(AssertionError):
            session.follow(block)
    with pytest.raises(ZeroDivisionError):
        session.follow(Block("python", "1 / 0\n", None))


def test_the_commands_for_a_stranger_are_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = {name for page in PAGES for name in re.findall(r"^make (\w+)", page.read_text(encoding="utf-8"), re.M)}
    assert {"quickstart", "test"} <= named
    assert [name for name in named if not re.search(rf"^{name}:", makefile, re.M)] == []


def test_pictures_and_links_of_the_readme_exist() -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []
