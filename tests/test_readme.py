"""What the README shows is run: its shell commands and its Python, in an empty folder.

Blocks after a comment `<!-- not run: reason -->` and the lines of `SET_UP` are not; everything else is.
"""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from packaged import clean_environment

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
NOT_RUN = r"(?:<!-- not run: (?P<reason>[^>]+) -->\n)?"
FENCE = re.compile(NOT_RUN + r"^```(?P<language>bash|python)\n(?P<code>.*?)^```", re.M | re.S)
SET_UP = re.compile(r"git clone |cd |make quickstart|make test|(python -m )?pip install ")
"""Lines about the clone and its environment: the tests already run inside one."""
PROMISED_ACCURACY = 0.95


class Block(NamedTuple):
    """A fenced block of code; `reason` says why it is not run, if it is not."""

    language: str
    code: str
    reason: str | None

    @property
    def commands(self) -> list[str]:
        """The lines of a shell block, without comments and blank lines."""
        return [line for line in (raw.partition("#")[0].strip() for raw in self.code.splitlines()) if line]


BLOCKS = [Block(match["language"], match["code"], match["reason"]) for match in FENCE.finditer(README)]
RUN = [block for block in BLOCKS if block.reason is None]


def test_every_block_of_code_is_known() -> None:
    opened = re.findall(r"^```(\w+)$", README, re.M)
    assert opened
    assert opened.count("bash") + opened.count("python") == len(BLOCKS)


def test_a_block_that_is_not_run_says_why() -> None:
    assert all(block.reason.strip() for block in BLOCKS if block.reason is not None)
    assert len(RUN) >= len(BLOCKS) / 2


def test_the_two_commands_for_a_stranger_are_in_the_makefile() -> None:
    makefile = (Path(__file__).parents[1] / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_shell_commands_run_in_order(tmp_path: Path, wheel_python: Path) -> None:
    """Outside the tree, by the program of the installed wheel."""
    environment = clean_environment(wheel_python)
    commands = [line for block in RUN if block.language == "bash" for line in block.commands]
    for line in commands:
        if SET_UP.match(line):
            continue
        words = shlex.split(line)
        assert words[0] == "bronet", f"a command that this test does not know: {line}"
        result = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, f"{line}\n{result.stdout}{result.stderr}"
    certified = json.loads((tmp_path / "runs" / "quickstart" / "report" / "summary.json").read_text(encoding="utf-8"))
    assert certified["clean_accuracy"] >= PROMISED_ACCURACY


@pytest.mark.parametrize("block", [block for block in RUN if block.language == "python"])
def test_python_runs(block: Block, tmp_path: Path) -> None:
    code = ["-W", "error", "-c", block.code]
    result = subprocess.run([sys.executable, *code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_pictures_and_links_exist() -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert targets
    assert [target for target in targets if not (Path(__file__).parents[1] / target).exists()] == []
