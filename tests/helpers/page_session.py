"""A page of the documentation as a session: its blocks of code, in order, in one folder.

Run are blocks of three languages: bash, whose commands must succeed; python, which share their names over the page; and
console, where a line `$ command` is followed by what it prints, `...` standing for anything. A block after a comment
`<!-- not run: reason -->` is not run; nor is one that only shows a file of the repository, named between two lines
`--8<--`.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from bronet.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN = frozenset({"bash", "python", "console"})
SHOWN = frozenset({"text", "yaml"})
FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^>]*) -->\n)?^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```$", re.M | re.S
)
SNIPPET = re.compile(r"^--8<--\n(?P<path>\S+)\n--8<--$", re.M)
SET_UP = re.compile(r"git clone |cd |make |(python -m )?pip install ")
"""Lines about the clone and its environment: the tests already run inside one."""
QUICKSTART = re.compile(r"(make|bronet) quickstart\b")
SHELL = re.compile(r"[|&;<>*$`]|--layers")
"""What a command must not hold to be run in this process; a layer file would stay registered."""
ENVIRONMENT = os.environ | {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),  # for python -m lab
}


class Block(NamedTuple):
    """A fenced block; `reason` says why it is not run, if it is not."""

    language: str
    code: str
    reason: str | None

    @property
    def shown_files(self) -> list[str]:
        return [match["path"] for match in SNIPPET.finditer(self.code)]

    @property
    def runs(self) -> bool:
        return self.language in RUN and self.reason is None and not self.shown_files

    @property
    def commands(self) -> list[str]:
        """The lines of a shell block, without comments and blank lines."""
        joined = self.code.replace("\\\n", " ")
        return [line for line in (re.sub(r"(^|\s)#.*", "", raw).strip() for raw in joined.splitlines()) if line]

    @property
    def exchanges(self) -> Iterator[tuple[str, str]]:
        """The commands of a console block, each with what it prints."""
        for part in re.split(r"^\$ ", self.code, flags=re.M)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    found = FENCE.finditer(page.read_text(encoding="utf-8"))
    return [Block(match["language"], match["code"], match["reason"]) for match in found]


class Session:
    """A folder in which a page is followed; it looks like a clone as far as pages need it.

    `quickstart` returns the quick start's run: it takes a minute, so all pages share one.
    """

    def __init__(self, folder: Path, quickstart: Callable[[], Path], patch: pytest.MonkeyPatch) -> None:
        self.folder, self.quickstart, self.patch = folder, quickstart, patch
        self.names: dict[str, object] = {"__name__": "__main__"}
        shutil.copytree(ROOT / "examples", folder / "examples")
        patch.chdir(folder)
        patch.delenv("BRONET_DATA", raising=False)  # a stranger has no data yet

    def follow(self, block: Block) -> None:
        """Do what a block says."""
        if block.language == "bash":
            for command in block.commands:
                self.run(command)
        elif block.language == "python":
            exec(compile(block.code, "<block>", "exec"), self.names)
        else:
            for command, expected in block.exchanges:
                self.compare(command, expected)

    def run(self, command: str) -> None:
        """Run a command, which must succeed."""
        if QUICKSTART.match(command):
            shutil.copytree(self.quickstart(), self.folder / "runs" / "quickstart", dirs_exist_ok=True)
        elif SET_UP.match(command):
            return
        elif command.startswith("bronet ") and not SHELL.search(command):
            status, output = self.bronet(command)
            assert status == 0, f"{command}\n{output}"
        else:
            result = subprocess.run(
                ["bash", "-c", command], env=ENVIRONMENT, capture_output=True, text=True, check=False
            )
            assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"

    def compare(self, command: str, expected: str) -> None:
        """Run a command, which must print what the page says; an error ends with status 2."""
        status, output = self.bronet(command)
        pattern = ".*".join(re.escape(part) for part in " ".join(expected.split()).split("..."))
        assert re.fullmatch(pattern, " ".join(output.split())), f"{command}\nprints {output}"
        assert status == (2 if expected.startswith("error: ") else 0)

    def bronet(self, command: str) -> tuple[int, str]:
        """Return the exit status and the output of a command, run in this process."""
        words = shlex.split(command)
        assert words[0] == "bronet", f"a command that this test does not know: {command}"
        assert words[1] != "serve", f"a command that does not end by itself: {command}"
        self.patch.setattr(sys, "argv", words)
        result = CliRunner().invoke(app, words[1:])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.output
