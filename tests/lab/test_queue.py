"""The queue of runs: what it takes, what it skips, what a run still needs; and for real, killed and called again."""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from bronet.certificates.run import certify_run
from bronet.cli import ExitStatus
from bronet.errors import BronetError
from bronet.recipe import override, to_text
from bronet.run.folder import open_run
from lab.commands import app
from lab.packed import pack
from lab.publish import publish
from lab.queue import Setting, _missing, expected_seconds, jobs_of, recipes_of
from lab.recipes import table_recipe
from lab.tables.published import RESULTS, paper_rows
from tiny_run import tiny_recipe, train_tiny_run

terminal = CliRunner()


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(runs=tmp_path / "runs", results=tmp_path / "results", device="cpu")


def test_tables_names_and_files_of_lines_name_each_recipe_once(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(to_text(replace(tiny_recipe(), name="own/digits")))
    lines = tmp_path / "list.txt"
    lines.write_text(f"# a remark\ncifar10/bronet-m  # the larger one is elsewhere\n\n{tmp_path}/own.yaml\n12\n")
    of_table = list(dict.fromkeys(row.recipe for row in paper_rows(12) if row.recipe))
    found = [recipe.name for recipe in recipes_of([str(lines), "cifar10/bronet-m"])]
    assert found == ["cifar10/bronet-m", "own/digits", *of_table]
    with pytest.raises(BronetError, match=r"cifar10/bronet-mm.*did you mean"):
        recipes_of(["cifar10/bronet-mm"])


def test_recipes_with_rows_are_skipped_seed_by_seed(setting: Setting) -> None:
    committed = replace(setting, results=RESULTS)
    recipes = recipes_of(["cifar100/lipconvnet-10-32", "cifar100/lipconvnet-10-48"])
    jobs = jobs_of(recipes, [0, 1, 2, 3], committed)
    assert [(job.recipe.name[-2:], job.recipe.train.seed) for job in jobs] == [
        ("48", 0),
        ("48", 1),
        ("48", 2),
        ("32", 3),
        ("48", 3),
    ]


def test_a_run_needs_what_it_does_not_have(setting: Setting) -> None:
    (job,) = jobs_of([tiny_recipe()], [0], setting)
    assert [words[0] for words in _missing(job, setting)] == ["train", "certify"]
    job = replace(job, recipe=open_run(train_tiny_run(job.run.path)).recipe)
    assert [words[:2] for words in _missing(job, setting)] == [["certify", str(job.run.path)]]
    job.run.weights.rename(job.run.path / "away")
    first, _ = _missing(job, setting)
    assert first[:3] == ["train", str(job.run.path), "--resume"]
    (job.run.path / "away").rename(job.run.weights)
    certify_run(job.run.path, limit=5)
    assert list(_missing(job, setting)) == []
    with pytest.raises(BronetError, match="holds a run of other settings"):
        list(_missing(replace(job, recipe=tiny_recipe()), setting))
    publish(job.run, job.rows)
    pack(job.rows)
    assert jobs_of([job.recipe], [0], setting) == []


def test_a_dry_run_lists_what_is_missing_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = terminal.invoke(app, ["run", "13", "--dry-run", "--device", "cpu"])
    assert shown.exit_code == 0, shown.output
    assert "missing  tiny-imagenet/lipconvnet-10-32, seed 0" in shown.stdout
    assert list(tmp_path.iterdir()) == []
    refused = terminal.invoke(app, ["run", "13", "--together", "0", "--device", "cpu"])
    assert refused.exit_code == ExitStatus.USER_ERROR


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_runs_that_begin_together_are_timed_in_turn() -> None:
    recipe = override(table_recipe("cifar100/lipconvnet-5-32"), ["train.batch_size=64"])
    with ThreadPoolExecutor(3) as pool:
        expected = list(pool.map(lambda _: expected_seconds(recipe, torch.device("cuda")), range(3)))
    assert all(seconds is not None and seconds > 0 for seconds in expected)


@pytest.mark.slow
def test_a_queue_that_was_killed_goes_on_and_leaves_compact_rows(tmp_path: Path) -> None:
    names = []
    for name, epochs in (("tiny/long", 60), ("tiny/short", 2)):
        path = tmp_path / f"{name.replace('/', '-')}.yaml"
        path.write_text(to_text(replace(tiny_recipe(f"train.epochs={epochs}"), name=name)))
        names.append(str(path))
    words = [sys.executable, "-m", "lab", "run", *names, "--together", "2", "--device", "cpu"]
    words += ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as queue:
        assert queue.stdout is not None
        for line in queue.stdout:
            if line.startswith("finished tiny/short"):
                queue.kill()
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "2 recipes, 1 runs without rows" in done.stdout
    assert re.search(r"finished tiny/long, seed 0: [\d.]+ / ", done.stdout)
    for name in ("tiny-long", "tiny-short"):
        folder = tmp_path / "results" / name / "seed-0"
        assert {path.suffix for path in folder.iterdir()} == {".json", ".yaml", ".xz"}
    again = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "2 recipes, 0 runs without rows" in again.stdout
    absent = tmp_path / "absent.yaml"
    absent.write_text(to_text(replace(tiny_recipe("data.name=cifar10", "data.held_out=0"), name="tiny/absent")))
    failed = subprocess.run(
        [*words, str(absent), "--data-dir", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert failed.returncode == ExitStatus.USER_ERROR
    assert "failed   tiny/absent, seed 0: bronet train" in failed.stdout
    assert "cifar10" in (tmp_path / "runs" / "tiny-absent-seed-0.log").read_text()
