"""A queue of runs: recipes trained, certified, and published as compact rows; what has rows already is skipped.

Every run is made by the ordinary commands in processes of its own, so one that fails or is killed stops no other. A
queue that is called again goes on where it was: finished steps of a run are not repeated, training resumes from its
checkpoint.
"""

import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

import torch

from bronet.bench.timing import time_training, usual_precision
from bronet.errors import BronetError
from bronet.files import replace_text
from bronet.recipe import Recipe, find_recipe, override, to_text
from bronet.run.folder import RunFolder
from bronet.wording import duration_text
from lab.packed import pack
from lab.publish import publish
from lab.recipes import table_recipe
from lab.tables.published import TRAIN_IMAGES, paper_rows, published_runs, runs_of

TIMED_STEPS = 3
TIMING = Lock()
"""A step is recorded on a GPU while nothing else in this process uses it: one run is timed at a time."""
RECIPE_FILES = (".yaml", ".yml")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where runs and their rows go, on which device, and how many run at once."""

    runs: Path
    results: Path
    device: str
    data_dir: Path | None = None
    together: int = 1

    def __post_init__(self) -> None:
        if self.together < 1:
            raise BronetError(f"--together must be at least 1, got {self.together}")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One recipe with its seed, the folder of its run and that of its rows."""

    recipe: Recipe
    run: RunFolder
    rows: Path

    @property
    def name(self) -> str:
        """The recipe and the seed, for people."""
        return f"{self.recipe.name}, seed {self.recipe.train.seed}"


def recipes_of(words: Sequence[str]) -> list[Recipe]:
    """Return the recipes that words name: a table's number, a recipe's name or YAML file, a text file with such lines.

    Each recipe comes once, in the order of the words; in a file of lines, what follows a # is a remark.
    """
    found: dict[str, Recipe] = {}
    for word in words:
        path = Path(word)
        if word.isdecimal():
            names = [row.recipe for row in paper_rows(int(word)) if row.recipe]
            new = [table_recipe(name) for name in names]
        elif path.suffix in RECIPE_FILES:
            new = [find_recipe(word)]
        elif path.is_file():
            lines = (line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
            new = recipes_of([line for line in lines if line])
        else:
            new = [table_recipe(word)]
        found |= {recipe.name: recipe for recipe in new}
    return list(found.values())


def jobs_of(recipes: Sequence[Recipe], seeds: Sequence[int], setting: Setting) -> list[Job]:
    """Return a job for every recipe and seed that has no rows yet, the first seed of all recipes first."""
    known = published_runs(setting.results) if setting.results.is_dir() else []
    jobs = []
    for seed in seeds:
        for recipe in recipes:
            words = re.sub(r"[^a-z0-9.]+", "-", recipe.name.lower())
            rows = setting.results / words / f"seed-{seed}"
            have = {run.recipe.train.seed for run in runs_of(recipe.name, known)}
            if seed not in have and not rows.exists():
                seeded = replace(recipe, train=replace(recipe.train, seed=seed))
                run = RunFolder(setting.runs / f"{words}-seed-{seed}")
                jobs.append(Job(recipe=seeded, run=run, rows=rows))
    return jobs


def expected_seconds(recipe: Recipe, device: torch.device) -> float | None:
    """Return how long training would take if every step took as long as a few do now; None for unknown data."""
    images = TRAIN_IMAGES.get(recipe.data.name)
    if images is None:
        return None
    timed = override(recipe, [usual_precision(device)])
    with TIMING:
        step = statistics.median(time_training(timed, device, repeats=TIMED_STEPS).times) / 1e3
    batch = recipe.train.batch_size - recipe.data.synthetic_batch
    return step * recipe.train.epochs * -(-(images - recipe.data.held_out) // batch)


def run_jobs(jobs: Sequence[Job], setting: Setting, say: Callable[[str], None]) -> list[Job]:
    """Run the jobs, so many at once as the setting says, and return those that failed."""
    with ThreadPoolExecutor(max_workers=setting.together) as pool:
        try:
            done = list(pool.map(lambda job: _finished(job, setting, say), jobs))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [job for job, finished in zip(jobs, done, strict=True) if not finished]


def _finished(job: Job, setting: Setting, say: Callable[[str], None]) -> bool:
    """Run what is missing of a job; say what came of it, and return whether it has its rows now."""
    expected = expected_seconds(job.recipe, torch.device(setting.device))
    say(f"start    {job.name}: {job.recipe.train.epochs} epochs, expected {duration_text(expected)}")
    began = time.perf_counter()
    job.run.path.parent.mkdir(parents=True, exist_ok=True)
    log = job.run.path.with_name(f"{job.run.path.name}.log")
    with log.open("ab") as file:
        for words in _missing(job, setting):
            status = subprocess.run([sys.executable, "-m", "bronet", *words], stdout=file, stderr=file, check=False)
            if status.returncode:
                say(f"failed   {job.name}: bronet {words[0]} ended with status {status.returncode}; see {log}")
                return False
    publish(job.run, job.rows)
    pack(job.rows)
    (run,) = published_runs(job.rows)
    told = " / ".join(f"{share:.1f}" for share in run.statistics.percents)
    trained, now = duration_text(run.evidence.training_seconds), duration_text(time.perf_counter() - began)
    say(f"finished {job.name}: {told}, trained in {trained}, all in {now}; rows in {job.rows}")
    return True


def _missing(job: Job, setting: Setting) -> Iterator[list[str]]:
    """Yield the commands that the run of a job still needs; each is asked for when those before have run."""
    place = ["--device", setting.device, *(["--data-dir", str(setting.data_dir)] if setting.data_dir else [])]
    run = job.run
    if run.recipe_file.exists() and run.recipe != job.recipe:
        raise BronetError(f"{run.path} holds a run of other settings than {job.name}; move it away")
    if not run.weights.exists():
        if run.checkpoint.exists():
            yield ["train", str(run.path), "--resume", *place]
        else:
            plan = run.path.with_name(f"{run.path.name}.yaml")
            replace_text(plan, to_text(job.recipe))
            yield ["train", str(plan), "--out", str(run.path), "--overwrite", *place]
    if not run.certificate().facts.exists():
        yield ["certify", str(run.path), *place]
