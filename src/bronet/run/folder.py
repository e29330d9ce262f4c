"""The folder of a run: its recipe, its log, its state and the record of how it was made.

The layout is that of docs/architecture.md; later stages add their own files. A folder that holds a run is
never overwritten by accident, and a folder that holds anything else is never touched.
"""

import json
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bronet.errors import BronetError
from bronet.files import MAKE_AGAIN, TEMPORARY_SUFFIX, Json, append_line, parse_object, read_object, replace_text, shown
from bronet.recipe.schema import Recipe
from bronet.recipe.source import read_recipe
from bronet.recipe.text import to_text

ARTEFACTS = (
    "recipe.yaml",
    "log.jsonl",
    "checkpoint.safetensors",
    "model.safetensors",
    "best.safetensors",
    "record.json",
    "certificate.csv",
    "certificate.json",
    "certificate-train.csv",
    "certificate-train.json",
    "certificate-sample.csv",
    "certificate-sample.json",
    "targeted.csv",
    "targeted-train.csv",
    "model.onnx",
    "model.pt2",
    "targeted-sample.csv",
)


@dataclass(frozen=True)
class RunFolder:
    """Names of the files of a run. Making one touches nothing; see `create_run` and `open_run`."""

    path: Path

    @property
    def recipe_file(self) -> Path:
        """The whole recipe, every default written out."""
        return self.path / "recipe.yaml"

    @property
    def log(self) -> Path:
        """One JSON line per epoch."""
        return self.path / "log.jsonl"

    @property
    def checkpoint(self) -> Path:
        """The training state."""
        return self.path / "checkpoint.safetensors"

    @property
    def weights(self) -> Path:
        """The final weights; present only when training has ended."""
        return self.path / "model.safetensors"

    @property
    def best_weights(self) -> Path:
        """The weights that were best on held-out images; present only if the recipe validates."""
        return self.path / "best.safetensors"

    @property
    def tracking(self) -> Path:
        """TensorBoard's event files, if they were wanted."""
        return self.path / "tensorboard"

    @property
    def record(self) -> Path:
        """Command, commit, seed, device, versions and time."""
        return self.path / "record.json"

    @property
    def report(self) -> Path:
        """The folder of tables, curves and the page."""
        return self.path / "report"

    def recipe(self) -> Recipe:
        """Read the recipe of this run."""
        return read_recipe(self.recipe_file, advice="give the folder of a run")

    def classes(self) -> tuple[str, ...]:
        """Return the names of the classes that the network learned; none for known data sets and unfinished runs."""
        names = read_object(self.record).get("classes", []) if self.record.exists() else []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise BronetError(f"classes in {self.record} must be a list of names, got {shown(names)}; {MAKE_AGAIN}")
        return tuple(names)

    def append_log(self, entry: Json) -> None:
        """Add one line to the log and wait until it is on the disk."""
        append_line(self.log, json.dumps(entry))

    def logged(self) -> list[Json]:
        """Return the entries of the log in order; lines that are damaged are left out, and a lost log has none."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines() if self.log.exists() else []
        entries: list[Json] = []
        for line in lines:
            with suppress(BronetError):
                entries.append(parse_object(line, self.log, advice="resume the run"))
        return entries

    def truncate_log(self, epochs: int) -> None:
        """Keep the entries of the first `epochs` epochs: a checkpoint may be older than the log."""
        kept = (entry for entry in self.logged() if entry.get("epoch") in range(1, epochs + 1))
        replace_text(self.log, "".join(json.dumps(entry) + "\n" for entry in kept))

    def write_record(self, entry: Json) -> None:
        """Write the record, replacing an earlier one."""
        replace_text(self.record, json.dumps(entry, indent=2) + "\n")


def create_run(path: Path, recipe: Recipe, *, overwrite: bool = False, advice: str = "choose another") -> RunFolder:
    """Return a new run folder that holds the recipe.

    A folder with a run in it is refused unless `overwrite` is set, which removes the files of that run and no
    others; a folder with anything else in it is always refused.
    """
    run = RunFolder(path)
    if path.exists() and not path.is_dir():
        raise BronetError(f"run folder {path} must be a folder, got a file; choose another name")
    if run.recipe_file.exists():
        if not overwrite:
            raise BronetError(f"run folder {path} already holds a run; {advice}")
        _remove_artefacts(run)
    elif path.exists() and any(not _is_leftover(entry) for entry in path.iterdir()):
        raise BronetError(f"run folder {path} must be new or empty, but it holds other files; choose another")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BronetError(f"could not make run folder {path} ({error}); choose another") from None
    replace_text(run.recipe_file, to_text(recipe))
    return run


def remove_run(run: RunFolder) -> None:
    """Remove the files of a run, and its folder if nothing else is in it."""
    _remove_artefacts(run)
    remove_leftovers(run)
    if not any(run.path.iterdir()):
        run.path.rmdir()


def _is_leftover(path: Path) -> bool:
    """Whether a file is what a killed write left behind."""
    return path.name.startswith(".") and path.suffix == TEMPORARY_SUFFIX


def remove_leftovers(run: RunFolder) -> None:
    """Remove what killed writes left behind; no other process may be writing."""
    for path in run.path.iterdir():
        if _is_leftover(path):
            path.unlink(missing_ok=True)


def open_run(path: Path) -> RunFolder:
    """Return the folder of an existing run."""
    run = RunFolder(path)
    if not run.recipe_file.is_file():
        raise BronetError(f"{path} must be the folder of a run, but it has no recipe.yaml; train one first")
    return run


def _remove_artefacts(run: RunFolder) -> None:
    numbered = (path.name for path in run.path.glob("checkpoint-*.safetensors"))
    for name in (*ARTEFACTS, *numbered):
        (run.path / name).unlink(missing_ok=True)
    for path in (*run.path.glob("attack-*-*-*.*"), *run.path.glob("model-*.data")):
        path.unlink()
    for folder in (run.report, run.tracking):
        if folder.is_dir():
            shutil.rmtree(folder)
