"""Wrong command lines, made at random from right ones: status 2, one line on stderr, and nothing written."""

import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bronet.cli import ExitStatus, app
from bronet.recipe import named_recipe, to_text
from bronet.recipe.text import dotted
from bronet.records import as_plain
from ledger import Tell

QUICK = "digits/quickstart"
RIGHT = (
    ("train", QUICK), ("bench", QUICK), ("certify", "run"), ("attack", "run"), ("verify", "run"), ("report", "run"),
    ("export", "run"), ("info", "run"),
    ("serve", "run"), ("data", "unpack", "run"), ("recipes", "show", QUICK), ("check", "run"),
)  # fmt: skip
NUMBERS = ("0", "-1", "1e300", "nan", "inf", "9" * 400, "1:30", "0x10", "", " ", "one", "1;2", "../x", "-")
PLACES = (
    "",
    "none",
    "/none/x",
    "file",
    "file/x",
    "\0",
    "x" * 300,
    "~",
    "run\n",
    "/dev/null",
    "a/b/c",
    "..",
    "%s",
    "\udce9",
)
OPTIONS = (
    "--batch-size",
    "--limit",
    "--steps",
    "--restarts",
    "--repeats",
    "--batch",
    "--samples",
    "--port",
    "--workers",
)
CHOICES = ("--device", "--split", "--norm", "--attack", "--format")
SWITCHES = ("--resume", "--overwrite", "--targeted", "--naive", "--download", "--track", "--fsdp", "--deterministic")
SETTINGS = [key for key, value in dotted(as_plain(named_recipe(QUICK))).items() if isinstance(value, int | float)]


def wrong_line(draw: random.Random) -> list[str]:
    """Return the words of a command with one thing or more wrong."""
    words = list(draw.choice(RIGHT))
    kind = draw.choice(("place", "number", "choice", "unknown", "missing", "setting", "command", "extra", "twice"))
    if kind == "place":
        words[1 if words[0] != "data" else 2] = draw.choice(PLACES)
    elif kind == "number":
        words += [draw.choice(OPTIONS), draw.choice(NUMBERS)]
    elif kind == "choice":
        words += [draw.choice(CHOICES), draw.choice(("", "cpux", "CPU ", "l3", "0"))]
    elif kind == "unknown":
        words += [draw.choice(("--none", "-z", "--devise", "--Limit", "--limit=", "---", "-=-")), "1"]
    elif kind == "missing":
        words = [words[0], draw.choice((*OPTIONS, *CHOICES))]
    elif kind == "setting":
        value = draw.choice((*NUMBERS, "{}", "[", "*x", "!!python/object:os.system", "null", "true"))
        words = [
            "train",
            QUICK,
            "--device",
            "cpu",
            "--set",
            f"{draw.choice(SETTINGS)}={value}",
            "--set",
            "train.epoch=1",
        ]
    elif kind == "command":
        words[0] = draw.choice(("trian", "", "TRAIN", "train ", "run", "-", "--", "\t"))
    elif kind == "extra":
        words += [draw.choice(PLACES), draw.choice(PLACES), "third", draw.choice(SWITCHES)]
    else:
        words += [draw.choice(SWITCHES), "--out", draw.choice(("file", "file/x", "/proc/none"))]
    return words


@pytest.mark.parametrize("tries", [40, pytest.param(600, marks=pytest.mark.slow)])
def test_a_wrong_command_line_is_refused_in_one_line(
    tries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: Tell
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BRONET_HOME", str(tmp_path / "home"))
    Path("file").write_text(to_text(named_recipe(QUICK)))
    before, lost = sorted(tmp_path.rglob("*")), list[str]()
    for seed in range(tries):
        words = wrong_line(random.Random(seed))
        result = CliRunner().invoke(app, words, prog_name="bronet")
        right = result.exit_code == ExitStatus.USER_ERROR and len(result.stderr.splitlines()) == 1
        if not right or (result.exception is not None and not isinstance(result.exception, SystemExit)):
            lost.append(f"{words}: {result.exit_code}, {result.exception!r}, {result.stderr[-300:]}")
        elif sorted(tmp_path.rglob("*")) != before:
            lost.append(f"{words}: wrote {sorted(tmp_path.rglob('*'))}")
            break
    row("wrong command line; one line, status 2, nothing written", tries, lost)
