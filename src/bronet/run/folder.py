"""The folder of a run: the name of every file in it, spelled once, and its recipe, log and record.

The layout is that of docs/architecture.md. A folder that holds a run is never overwritten by accident, and a folder
that holds anything else is never touched.
"""

import json
import reprlib
import shutil
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bronet.errors import BronetError
from bronet.files import TEMPORARY_SUFFIX, Json, append_line, read_object, read_sealed, replace_text, write_sealed
from bronet.recipe.schema import SPLITS, Recipe
from bronet.recipe.text import read_recipe, to_text
from bronet.wording import Format

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

PAGE = "report.html"
STEP_DIGITS = 9
LEFTOVERS = f".*{TEMPORARY_SUFFIX}"


class CertificateFiles(NamedTuple):
    """The files of one split's certificate: the test split's have the plain names."""

    rows: Path
    facts: Path
    targeted: Path


class AttackFiles(NamedTuple):
    """The files of one attack: a row for each image, and what was run."""

    rows: Path
    facts: Path


@dataclass(frozen=True)
class NamedFile:
    """A file or folder with a name of its own in the folder of a run."""

    name: str

    def __get__(self, run: "RunFolder", kind: type) -> Path:
        return run.path / self.name


@dataclass(frozen=True)
class RunFolder:
    """Names of the files of a run. Making one touches nothing; see `create_run` and `open_run`.

    `network` makes the network, without its weights, of a run whose network is of the user's own code.
    """

    path: Path
    network: "Callable[[], nn.Module] | None" = None

    recipe_file = NamedFile("recipe.yaml")
    """The whole recipe, every default written out."""
    log = NamedFile("log.jsonl")
    """One JSON line per epoch."""
    checkpoint = NamedFile("checkpoint.safetensors")
    """The training state."""
    weights = NamedFile("model.safetensors")
    """The final weights; present only when training has ended."""
    best_weights = NamedFile("best.safetensors")
    """The weights that were best on held-out images; present only if the recipe validates."""
    tracking = NamedFile("tensorboard")
    """The folder of TensorBoard's event files, if they were wanted."""
    record = NamedFile("record.json")
    """Command, commit, seed, device, versions and time."""
    report = NamedFile("report")
    """The folder of tables, curves and the page (`PAGE`)."""

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe of this run, read when it is first asked for."""
        return read_recipe(self.recipe_file, advice="give the folder of a run")

    def numbered_checkpoint(self, step: int) -> Path:
        """Return the name of an older training state that is kept."""
        return self.path / f"checkpoint-{step:0{STEP_DIGITS}d}.safetensors"

    def older_checkpoints(self) -> list[Path]:
        """Return the older training states that are there, newest first."""
        return sorted(self.path.glob(f"checkpoint-{'[0-9]' * STEP_DIGITS}.safetensors"), reverse=True)

    def certificate(self, split: str = "test") -> CertificateFiles:
        """Return the files of the certificate of a split."""
        end = "" if split == "test" else f"-{split}"
        names = (f"certificate{end}.csv", f"certificate{end}.json", f"targeted{end}.csv")
        return CertificateFiles(*(self.path / name for name in names))

    def certified_split(self) -> str:
        """Return the split that stands for the run: the test images or, where only those are certified, the sample."""
        test, sample = (self.certificate(split).facts.exists() for split in ("test", "sample"))
        return "sample" if sample and not test else "test"

    def attacks(self) -> list[AttackFiles]:
        """Return the files of every attack that was begun."""
        return [AttackFiles(path.with_suffix(".csv"), path) for path in sorted(self.path.glob("attack-*.json"))]

    def exported(self, format: Format, *, proved: bool = False) -> Path:
        """Return the name of the exported network of a format, or that of the program of its proof."""
        return self.path / f"{'proved' if proved else 'model'}{format.suffix}"

    def evidence(self) -> list[Path]:
        """Return the files from which tables are computed: recipe, log, record, certificates and attacks."""
        certificates = (path for split in SPLITS for path in self.certificate(split))
        attacks = (path for suffix in ("csv", "json") for path in self.path.glob(f"attack-*.{suffix}"))
        return [self.recipe_file, self.log, self.record, *certificates, *attacks]

    def artefacts(self) -> list[Path]:
        """Return the files and folders that a run may consist of; those with numbers in their names if they exist."""
        return [
            *self.evidence(),
            self.checkpoint,
            *self.older_checkpoints(),
            self.weights,
            self.best_weights,
            self.tracking,
            *(self.exported(format, proved=proved) for format in Format for proved in (False, True)),
            *(path for stem in ("model", "proved") for path in self.path.glob(f"{stem}-*.data")),
            *self.path.glob(".*.parts"),
            self.report,
        ]

    def classes(self) -> tuple[str, ...]:
        """Return the names of the classes that the network learned; none for known data sets and unfinished runs."""
        names = self.read_record().get("classes", [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise BronetError(f"classes in {self.record} must be a list of names, got {reprlib.repr(names)}")
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
                entries.append(read_object(self.log, text=line))
        return entries

    def truncate_log(self, epochs: int) -> None:
        """Keep the entries of the first `epochs` epochs: a checkpoint may be older than the log."""
        kept = (entry for entry in self.logged() if entry.get("epoch") in range(1, epochs + 1))
        replace_text(self.log, "".join(json.dumps(entry) + "\n" for entry in kept))

    def write_record(self, entry: Json) -> None:
        """Write the record under a seal, replacing an earlier one."""
        write_sealed(self.record, entry)

    def read_record(self) -> Json:
        """Return the record, empty where there is none; raise where it was edited after it was written."""
        return read_sealed(self.record) if self.record.exists() else {}


def create_run(path: Path, recipe: Recipe, *, overwrite: bool = False, advice: str = "choose another") -> RunFolder:
    """Return a new run folder that holds the recipe.

    A folder with a run in it is refused unless `overwrite` is set, which removes the files of that run and no
    others; a folder with anything else in it is always refused.
    """
    run = RunFolder(path)
    if run.recipe_file.exists():
        if not overwrite:
            raise BronetError(f"run folder {path} already holds a run; {advice}")
        _remove_artefacts(run)
    elif path.is_dir() and any(not entry.match(LEFTOVERS) for entry in path.iterdir()):
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


def remove_leftovers(run: RunFolder) -> None:
    """Remove what killed writes left behind; no other process may be writing."""
    for path in run.path.glob(LEFTOVERS):
        path.unlink(missing_ok=True)


def open_run(run: RunFolder | Path | str, *, network: "Callable[[], nn.Module] | None" = None) -> RunFolder:
    """Return the folder of an existing run; one that is open already stays as it is, with what was read of it.

    A run of a network of your own code needs a class or a function that makes the `network` when it is called.
    """
    run = run if isinstance(run, RunFolder) else RunFolder(Path(run), network)
    if not run.recipe_file.is_file():
        raise BronetError(f"{run.path} must be a run's folder, but it has no {run.recipe_file.name}; train one first")
    return run


def _remove_artefacts(run: RunFolder) -> None:
    for path in run.artefacts():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
