"""A whole run, from a recipe to a folder with trained weights and a record of how they were made.

The held-out images depend on the data set and their number only, so that runs with other seeds are tuned on the same
images. The test set is never part of them, nor of those that are trained on.
"""

import math
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from bronet.__about__ import __version__
from bronet.data import (
    DecodedStream,
    FileSet,
    ImageSet,
    ImageStream,
    MixedBatches,
    ResidentStream,
    open_images,
    open_synthetic,
    stratified_split,
)
from bronet.errors import BronetError
from bronet.files import Json, held
from bronet.models import CertifiableModel, build_model
from bronet.models.create import require_memory
from bronet.recipe.schema import DATASETS, DataRecipe, Recipe
from bronet.run.folder import RunFolder, create_run, open_run
from bronet.training.checkpoint import check_recipe, save_model
from bronet.training.distributed import Processes, joined_processes
from bronet.training.learner import Training
from bronet.training.statistics import tensorboard_writer

HELD_OUT_SEED = 0
GIT_SECONDS = 5
NUMBERS_PER_WEIGHT = 3
"""That training holds at least: the weight, its gradient and a moment."""
WORKSPACE_VARIABLE, WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
FIXED_WORKSPACES = (WORKSPACE, ":16:8")
"""cuBLAS repeats its sums only with a workspace of fixed size; torch looks once, at its first product on a GPU."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run is carried out; none of it changes what is trained.

    `workers` processes decode image files; `track` writes for TensorBoard; `fsdp` shards over the processes.
    `deterministic` repeats bits on a GPU.
    """

    workers: int = 0
    fsdp: bool = False
    deterministic: bool = False
    track: bool = False

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise BronetError(f"workers must be at least 0, got {self.workers}")


def train_recipe(
    recipe: Recipe,
    run_dir: Path | str,
    *,
    device: torch.device | str = "cpu",
    data_dir: Path | str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    command: str | None = None,
    options: RunOptions | None = None,
    model: CertifiableModel | None = None,
) -> RunFolder:
    """Train the recipe and return its folder, which then holds the final weights.

    Guaranteed: the same recipe gives the same bits on the same CPU with the same number of threads and processes,
    interrupted and resumed or not. The data are loaded and the model is built before anything is written.

    An existing run is refused unless it is to be replaced (`overwrite`), or to go on from its checkpoint, or from its
    start if it has none yet (`resume`); its recipe must then be the same. `data_dir` holds the data set's files.
    `progress` shows a bar on a terminal and lines elsewhere. The record names `command`, by default this process's
    command line. A `model` that is given, as by `bronet.train`, is trained in place of the recipe's. Under torchrun
    every process calls this; a restart by torchrun resumes.
    """
    options, folder = options or RunOptions(), Path(run_dir)
    wanted = checked_device(device, recipe, options)
    with ExitStack() as end:
        if options.deterministic:
            end.enter_context(_deterministic())
        processes, place = end.enter_context(joined_processes(wanted))
        if options.fsdp and processes.world == 1:
            raise BronetError("processes must be at least 2 to shard over (fsdp), got 1; start them with torchrun")
        # torchrun may have started them again
        resume = resume or (processes.restarts > 0 and RunFolder(folder).recipe_file.exists())
        run = _run_to_resume(folder, recipe) if resume else RunFolder(folder)
        finished = resume and run.weights.exists()  # such a run keeps its weights and its record
        images = Path(data_dir) if data_dir else None
        batches, held_out = open_training(recipe, place, processes, data_dir=images, workers=options.workers)
        if model is None:
            model = build_model(recipe.model, recipe.data.spec(), seed=recipe.train.seed)
        model = model.to("cpu" if options.fsdp else place)  # what is sharded need not fit on one device
        if place.type == "cpu" and not options.fsdp:
            require_memory(model, copies=NUMBERS_PER_WEIGHT)
        if processes.is_main:
            end.enter_context(held(folder))
            if not resume:
                advice = "go on with it (--resume), replace it (--overwrite) or choose another"
                create_run(folder, recipe, overwrite=overwrite, advice=advice)
        processes.wait()
        record = describe_run(recipe, device=place, command=command)
        record |= {"processes": processes.world, "steps": batches.steps_per_epoch * recipe.train.epochs}
        if recipe.data.name not in DATASETS:  # the names of its folders, on which labels rest
            record["classes"] = list(batches.classes)
        tracker = tensorboard_writer()(str(run.tracking)) if options.track and processes.is_main else None
        training = Training(recipe, model, batches, run, processes, held_out, tracker, options.fsdp)
        training.fit(resume=resume, progress=progress)
        if not finished:
            save_model(run.weights, model, recipe=recipe, writes=processes.is_main)
        if processes.is_main and not (finished and run.record.exists()):
            record["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
            record["seconds"] = round(training.watch.seconds(), 3)
            if not math.isnan(training.teacher_accuracy):  # the teacher was trained now
                record["teacher_accuracy"] = training.teacher_accuracy
            run.write_record(record)
        processes.wait()
    return run


def checked_device(device: torch.device | str, recipe: Recipe, options: RunOptions) -> torch.device:
    """Return the device; one on which the recipe cannot be trained with these options is refused."""
    try:
        place = torch.device(device)
    except RuntimeError:
        raise BronetError(f'device must be "cpu" or "cuda", got {device!r}') from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise BronetError(f"device must be available, got {place}: no CUDA device was found; use cpu")
    if place.type == "cpu" and recipe.train.precision == "bf16":
        # No gain there, and some processors announce bf16 instructions that they then refuse to run.
        raise BronetError("train.precision must be float32 on a CPU, got bf16; train on cuda or change it")
    if options.fsdp and recipe.optim.name not in ("nadam", "sgd"):
        raise BronetError(
            f"optim.name must be nadam or sgd where parameters are sharded (fsdp), got {recipe.optim.name!r}: "
            "a part of a matrix cannot be orthogonalised"
        )
    if options.track:
        tensorboard_writer()
    return place


def _run_to_resume(folder: Path, recipe: Recipe) -> RunFolder:
    run = open_run(folder)
    check_recipe(run.recipe_file, run.recipe, recipe)
    if run.weights.exists() and not run.checkpoint.exists() and not run.older_checkpoints():
        raise BronetError(  # a rounded, copied or downloaded network
            f"a run to resume must have a checkpoint, but {run.path} has weights only; certify them as they are "
            "(bronet certify), or train the recipe in another folder"
        )
    return run


def open_training(
    recipe: Recipe, device: torch.device, processes: Processes, *, data_dir: Path | None = None, workers: int = 0
) -> tuple[MixedBatches, ImageSet | None]:
    """Return the batches of a run, and the held-out images if the recipe validates on them.

    Images in memory go to the device as a whole; files are decoded by `workers` processes.
    """

    def stream(found: ImageSet | FileSet, seed: int) -> ImageStream:
        if isinstance(found, ImageSet):
            return ResidentStream(found.to(device))
        spec = data.spec()
        return DecodedStream(found, spec, resize=data.resize, flip=data.flip, seed=seed, workers=workers, device=device)

    data, seed = recipe.data, recipe.train.seed
    kept, held = split_images(data, data_dir=data_dir)
    real, synthetic = stream(kept, seed), None
    if data.synthetic:
        synthetic = stream(open_synthetic(data, kept.classes, data_dir=data_dir), seed + 1)
    batches = MixedBatches(recipe, real, synthetic, device=device, rank=processes.rank, world=processes.world)
    if held is None or not recipe.train.validate_every:
        return batches, None
    decoded = held.decoded(data.spec(), resized=bool(data.resize)) if isinstance(held, FileSet) else held
    return batches, decoded.to(device)


def split_images(
    recipe: DataRecipe, *, data_dir: Path | None = None
) -> tuple[ImageSet | FileSet, ImageSet | FileSet | None]:
    """Return the training images to learn from, and those that the recipe holds out: in memory, or as files."""
    whole = open_images(recipe, "train", data_dir=data_dir)
    if recipe.held_out == 0:
        return whole, None
    kept, held = stratified_split(whole.labels, recipe.held_out, HELD_OUT_SEED)
    return whole.subset(kept), whole.subset(held)


def describe_run(recipe: Recipe, *, device: torch.device, command: str | None) -> Json:
    """Return what a record says besides times: command, commit, seed, device and versions."""
    versions = {"bronet": __version__, "python": platform.python_version()}
    return {
        "recipe": recipe.name,
        "command": command or shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": source_commit(),
        "seed": recipe.train.seed,
        "precision": recipe.train.precision,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU",
        "threads": torch.get_num_threads(),
        "versions": versions | {"torch": torch.__version__, "numpy": np.__version__},
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def source_commit() -> str | None:
    """Return the git commit this package runs from, with "+changes" if it was edited; None when unknown.

    An installed copy has none, even inside another repository: the source file must be tracked. BRONET_COMMIT may tell
    it to a copy of the source without its repository, as on a cluster.
    """
    here = Path(__file__)
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return os.environ.get("BRONET_COMMIT")
    commit = _git(here.parent, "rev-parse", "HEAD")
    changes = _git(here.parent, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}+changes" if commit and changes else commit


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@contextmanager
def _deterministic() -> Iterator[None]:
    """Inside, allow only operations that repeat their bits on one GPU, at some cost in speed; a CPU always does.

    The same recipe then gives the same weights on the same kind of GPU with the same software and number of processes.
    It is too late, and a `BronetError`, where CUDA has started without a fixed workspace.
    """
    found = os.environ.get(WORKSPACE_VARIABLE)
    if found not in FIXED_WORKSPACES:
        if torch.cuda.is_initialized():
            raise BronetError(
                f"{WORKSPACE_VARIABLE} must be {WORKSPACE} before CUDA starts for a deterministic run, got {found}; "
                "set it in the environment of the program"
            )
        os.environ[WORKSPACE_VARIABLE] = WORKSPACE
    before, benchmark = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.backends.cudnn.benchmark = benchmark
