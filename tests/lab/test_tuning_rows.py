"""The log of tuning runs, from two real runs to the table of a page."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import get_type_hints

import pytest
from typer.testing import CliRunner

from bronet.cli import ExitStatus
from bronet.errors import BronetError
from bronet.recipe import named_recipe, override
from bronet.training import train_recipe
from lab.bench import csv_text
from lab.commands import app
from lab.tables.tuning import (
    DIGITS,
    FILE,
    REPEATED,
    TuningRow,
    changes_table,
    collect,
    read_tuning,
    tuning_row,
    write_tuning,
)
from tiny_run import SETTINGS

RADII = "certify.eps=[36/255, 72/255, 108/255]"
BASE = [*SETTINGS, "train.validate_every=1", RADII]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that held 797 of the digits out; the second learns more slowly."""
    folder = tmp_path_factory.mktemp("tuning")
    recipe = named_recipe("digits/quickstart")
    for name, settings in (("base", BASE), ("slow", [*BASE, "optim.lr=5e-4", "name=mine/slow"])):
        train_recipe(override(recipe, settings), folder / name, progress=False, command="test")
    return folder


def write(base: Path, *runs: Path, out: Path) -> None:
    result = CliRunner().invoke(app, ["tuning", str(base), *map(str, runs), "--out", str(out)])
    assert result.exit_code == 0, result.output


def last_line(run: Path) -> dict[str, object]:
    return json.loads((run / "log.jsonl").read_text().splitlines()[-1])


def test_a_line_says_what_was_changed_and_what_it_gave(runs: Path) -> None:
    row, last = tuning_row(runs / "slow", base=runs / "base"), last_line(runs / "slow")
    assert (row.run, row.against, row.changed) == ("slow", "base", "optim.lr: 0.005 -> 0.0005")
    certified = last["validation_certified"]
    assert isinstance(certified, dict)
    assert row.shares == pytest.approx((last["validation_accuracy"], *certified.values()), abs=10**-DIGITS)
    assert row.shares[0] >= row.shares[1] >= row.shares[2] >= row.shares[3]
    assert (row.images_held_out, row.epochs, row.steps) == (797, 3, 3 * (500 // 64))
    assert row.train_accuracy == pytest.approx(last["accuracy"], abs=10**-DIGITS)
    assert row.seconds > 0
    assert row.network == "bronet, width 8, depth 1"
    assert tuning_row(runs / "base").against == ""


def test_the_command_keeps_verdicts_and_other_lines(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "tuning.csv"
    write(runs / "base", runs / "slow", out=out)
    rows = read_tuning(out)
    assert [row.run for row in rows] == ["base", "slow"]
    judged = [replace(row, verdict="dropped, for now") if row.run == "slow" else row for row in rows]
    out.write_text(csv_text([*judged, replace(rows[0], run="other")]))
    write(runs / "base", runs / "slow", out=out)
    assert [(row.run, row.verdict) for row in read_tuning(out)] == [
        ("base", ""),
        ("slow", "dropped, for now"),
        ("other", ""),
    ]
    with out.open(newline="") as file:
        assert next(csv.reader(file))[:4] == ["run", "changed", "against", "network"]


def test_a_chain_of_comparisons_stays(runs: Path, tmp_path: Path) -> None:
    """A run that was compared with another keeps that line when it becomes the base of the next."""
    shutil.copytree(runs / "slow", tmp_path / "again")
    rows = collect(runs / "base", [runs / "slow"])
    rows = collect(runs / "slow", [tmp_path / "again"], rows)
    assert [(row.run, row.against) for row in rows] == [("base", ""), ("slow", "base"), ("again", "slow")]
    assert rows[1].changed == "optim.lr: 0.005 -> 0.0005"
    assert rows[2].changed == REPEATED


def test_the_page_shows_points_against_the_named_run(runs: Path, tmp_path: Path) -> None:
    write(runs / "base", runs / "slow", out=tmp_path / FILE)
    rows, file = read_tuning(tmp_path / FILE), tmp_path / "page.md"
    file.write_text("<!-- generated: tuning slow -->\n<!-- end -->\n")
    done = CliRunner().invoke(app, ["fill", str(file), "--results", str(tmp_path)])
    assert done.exit_code == 0, done.output
    page = file.read_text(encoding="utf-8")
    (line,) = (line for line in page.splitlines() if line.startswith("| `slow`"))
    apart = [f"{100 * (mine - other):+.1f}" for mine, other in zip(rows[1].shares, rows[0].shares, strict=True)]
    assert f"| {' / '.join(apart)} " in line
    assert "optim.lr: 0.005 -> 0.0005" in line
    assert "up to 1.8 points" in page  # half a share, divided by the root of 797


def test_without_rows_the_page_says_so(tmp_path: Path) -> None:
    assert read_tuning(tmp_path / "tuning.csv") == []
    assert "not run" in changes_table([], ["x"])


@pytest.mark.parametrize("names", [[], ["nobody"], ["base"]])
def test_only_runs_that_are_compared_with_another_can_be_shown(runs: Path, names: list[str]) -> None:
    rows = collect(runs / "base", [runs / "slow"])
    with pytest.raises(BronetError, match="must name runs that are compared"):
        changes_table(rows, names)


def test_a_log_is_the_same_packed_or_not(runs: Path, tmp_path: Path) -> None:
    rows = collect(runs / "base", [runs / "slow"])
    for name in ("tuning.csv", "tuning.csv.xz"):
        write_tuning(tmp_path / name, rows)
        assert read_tuning(tmp_path / name) == rows
    assert (tmp_path / "tuning.csv").read_text() == csv_text(rows)


def test_runs_that_cannot_be_compared_are_refused(runs: Path, tmp_path: Path) -> None:
    def changed(name: str, file: str, old: str, new: str) -> Path:
        copy = tmp_path / name
        shutil.copytree(runs / "slow", copy)
        (copy / file).write_text((copy / file).read_text().replace(old, new))
        return copy

    for path, reason in (
        (changed("fewer", "recipe.yaml", "held_out: 797", "held_out: 697"), "the same images, got 797 of digits in"),
        (changed("short", "recipe.yaml", "epochs: 3", "epochs: 4"), "must end with epoch 4, got 3"),
        (changed("blind", "log.jsonl", "validation_certified", "something"), "validation_certified at 36/255"),
        (
            changed("nan", "log.jsonl", '"validation_accuracy": 0', '"validation_accuracy": NaN, "was": 0'),
            "must have valid",
        ),
        (runs / "base", "folder names of their own, got base 2 times"),
    ):
        with pytest.raises(BronetError, match=reason):
            collect(runs / "base", [path])
    out = tmp_path / "tuning.csv"
    refused = CliRunner().invoke(app, ["tuning", str(runs / "base"), str(tmp_path / "short"), "--out", str(out)])
    assert refused.exit_code == ExitStatus.USER_ERROR
    assert "must end with epoch 4" in refused.stderr
    assert refused.stdout == ""
    assert not out.exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"against": "nobody"}, "compared with nobody, which has no line"), ({"run": "base"}, "every run once")],
)
def test_a_log_that_contradicts_itself_is_refused(
    runs: Path, tmp_path: Path, change: dict[str, str], reason: str
) -> None:
    first, second = collect(runs / "base", [runs / "slow"])
    path = tmp_path / "tuning.csv"
    path.write_text(csv_text([first, replace(second, **change)]))  # type: ignore[arg-type]
    with pytest.raises(BronetError, match=reason):
        read_tuning(path)


LINE = "base,,,net,2,10,1.5,100,0.5,0.4,0.3,0.2,0.6,abc,CPU,fine"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("run,changed,", "run;changed;", "its columns must be run, changed"),
        (",verdict\n", "\n", "its columns must be run, changed"),
        (",CPU,fine", "", "base must have 16 cells, got 14; text that holds a comma"),
        ("fine", "fine, for now", "base must have 16 cells, got 17; text that holds a comma"),
        ("fine", '"fine\nso far"', "verdict of 'base' must be one line"),
        (",100,", ",0,", "images_held_out and epochs of base must be at least 1"),
        (",0.5,", ",50.0,", r"clean of base must lie in \[0, 1\], got 50.0"),
        (",0.5,", ",nan,", r"clean of base must lie in \[0, 1\], got nan"),
        (",1.5,", ",inf,", "seconds finite"),
        (",0.5,", ',"0,5",', "clean of base must be a number, got '0,5'"),
    ],
)
def test_a_log_that_was_spoiled_by_hand_is_refused(tmp_path: Path, old: str, new: str, reason: str) -> None:
    path, header = tmp_path / "tuning.csv", ",".join(get_type_hints(TuningRow))
    path.write_text(f"{header}\n{LINE}\n".replace(old, new, 1))
    with pytest.raises(BronetError, match=reason) as error:
        read_tuning(path)
    assert "\n" not in str(error.value)


def test_a_log_that_went_through_a_spreadsheet_is_read(tmp_path: Path) -> None:
    path, header = tmp_path / "tuning.csv", ",".join(get_type_hints(TuningRow))
    path.write_bytes(f"\ufeff{header}\r\n{LINE}\r\n\r\n".encode())
    (row,) = read_tuning(path)
    assert (row.run, row.clean, row.verdict) == ("base", 0.5, "fine")


@pytest.mark.parametrize("text", ["", "run,changed\nbase,nothing\n", "\0"])
def test_a_file_that_is_no_log_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tuning.csv"
    path.write_text(text)
    with pytest.raises(BronetError, match=r"must be a tuning\.csv"):
        read_tuning(path)


def test_a_log_that_cannot_be_written_ends_in_one_line(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    words = ["tuning", str(runs / "base"), "--out", str(tmp_path / "file" / "tuning.csv")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == ExitStatus.USER_ERROR
    assert result.stderr.startswith("error: could not write")
    assert len(result.stderr.splitlines()) == 1
