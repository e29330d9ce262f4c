"""`bronet train` and `bronet quickstart`: from a recipe to a run folder with trained weights, and on to its report."""

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bronet.cli import options
from bronet.cli.certify import certify_and_show
from bronet.errors import BronetError
from bronet.run.shares import Share

if TYPE_CHECKING:
    from bronet.recipe import Recipe
    from bronet.run.folder import RunFolder

QUICKSTART, QUICKSTART_RECIPE = options.RUNS / "quickstart", "digits/quickstart"
QUICKSTART_THREADS = 1
"""Matrices this small gain little from a second thread, and wait long for it where other programs are running."""


def quickstart(
    out: Annotated[Path, options.out_option("Run folder; an earlier quick start in it is replaced.")] = QUICKSTART,
    seed: Annotated[int, typer.Option(help="Seed of weights, order and augmentation.")] = 0,
) -> None:
    """Train, certify and report a small network.

    Example:  bronet quickstart

    Uses the handwritten digits in this package; needs no other data and no GPU. Writes a run folder with the
    recipe, the weights, one row per test image, and a report with the curve of certified accuracy.
    """
    import torch

    from bronet.cli.console import say
    from bronet.recipe import named_recipe, override
    from bronet.report import write_report
    from bronet.run.folder import PAGE, RunFolder
    from bronet.training import train_recipe

    earlier = RunFolder(out)
    if earlier.recipe_file.exists() and earlier.recipe.name != QUICKSTART_RECIPE:
        raise BronetError(f"--out must not hold another run, got {out} with {earlier.recipe.name}; choose another")
    torch.set_num_threads(QUICKSTART_THREADS)
    recipe = override(named_recipe(QUICKSTART_RECIPE), [f"train.seed={seed}"])
    say(f"training the recipe {recipe.name} for {recipe.train.epochs} epochs on the embedded digits")
    with _resumable():
        run = train_recipe(recipe, out, device="cpu", overwrite=True, command=options.typed_command())
    certify_and_show(run)
    say("No change of the pixels shorter than the radius (l2 norm) changes the class.")
    write_report(run.path)
    say(f"report:  {run.report / PAGE}")
    say(f"next:    bronet serve {shlex.quote(str(out))}   or   bronet recipes")


def train(
    recipe: Annotated[
        str,
        options.recipe_named("A name that `bronet recipes` lists, a YAML file, or with --resume the folder of a run."),
    ],
    *,
    out: Annotated[Path | None, options.out_option("Run folder. Default: runs/NAME-OF-THE-RECIPE.")] = None,
    settings: options.SettingsOption = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Short for --set train.seed=N.")] = None,
    device: options.DeviceOption = "auto",
    data_dir: options.DataDirOption = None,
    download: options.DownloadOption = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run's checkpoint.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in that folder.")] = False,
    workers: Annotated[int, typer.Option(min=0, help="Processes that decode image files (ImageNet).", metavar="N")] = 0,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Repeat bits on a GPU, somewhat slower; a CPU always does.")
    ] = False,
    track: Annotated[bool, typer.Option("--track", help="Write for TensorBoard, too (needs bronet[track]).")] = False,
    fsdp: Annotated[
        bool, typer.Option("--fsdp", help="Shard parameters and optimiser over the processes of torchrun.")
    ] = False,
    certify: Annotated[
        bool, typer.Option("--certify", help="Then prove the network and certify the test images, as bronet certify.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Take a few steps, tell size, memory and time of the run, and stop.")
    ] = False,
) -> None:
    """Train the network of a recipe.

    Example:  bronet train digits/quickstart --set train.epochs=5 --certify

    Writes into the run folder: recipe.yaml (every setting), log.jsonl (one line per epoch),
    checkpoint.safetensors (to resume from), model.safetensors (the weights) and record.json; with --certify
    also what `bronet certify` writes, and prints how long each part took.
    Ctrl-C saves the state and says how to resume. On several GPUs:
    torchrun --nproc-per-node=8 -m bronet train ... (see docs/training.md).
    """
    began = time.perf_counter()
    from bronet.cli.console import say
    from bronet.data import provide_images
    from bronet.recipe.architecture import OwnArchitecture
    from bronet.training import RunOptions, train_recipe

    if resume and (overwrite or dry_run):
        other = "--overwrite" if overwrite else "--dry-run"
        raise BronetError(f"--resume and {other} exclude each other; give one of them")
    changes = [*(settings or []), *([f"train.seed={seed}"] if seed is not None else [])]
    plan, folder = _recipe_and_folder(recipe, changes, out, resume=resume)
    if isinstance(plan.model, OwnArchitecture):
        raise BronetError(
            f"a network of your own is trained in Python: bronet.train(model, ..., folder={str(folder)!r})"
        )
    if certify:  # images that are missing are better missed now than after the last epoch
        provide_images(plan.data, "test", data_dir=data_dir, download=download)
    place = options.usable_device(device)
    if download:
        provide_images(plan.data, "train", data_dir=data_dir, download=True)
    if dry_run:
        _show_forecast(plan, folder, device=place, data_dir=data_dir, workers=workers)
        return
    with _resumable(data_dir):
        run = train_recipe(
            plan,
            folder,
            device=place,
            data_dir=data_dir,
            resume=resume,
            overwrite=overwrite,
            command=options.typed_command(),
            options=RunOptions(workers=workers, deterministic=deterministic, track=track, fsdp=fsdp),
        )
    say(f"trained: {run.path}")
    if certify:
        _certify(run, device=place, data_dir=data_dir, began=began, resumed=resume)
    words, place_of_data = ("report", None) if certify else ("certify", data_dir)
    say(f"next:    {options.command_for(words, run.path, data_dir=place_of_data)}")


def _recipe_and_folder(text: str, changes: list[str], out: Path | None, *, resume: bool) -> tuple["Recipe", Path]:
    """Return the recipe that the argument names, with some settings changed, and the folder of the run."""
    from bronet.recipe import find_recipe, override
    from bronet.run.folder import open_run

    path = Path(text)
    if path.is_dir():
        if not resume:
            raise BronetError(
                f"RECIPE must be a name or a YAML file, got the folder {path}; to go on with it add --resume"
            )
        return override(open_run(path).recipe, changes), out or path
    try:
        recipe = find_recipe(text)
    except BronetError as error:
        if not resume:
            raise
        raise BronetError(f"--resume needs the folder of a run, and {text} is no folder ({error})") from None
    recipe = override(recipe, changes)
    return recipe, out or options.RUNS / recipe.name.replace("/", "-")


def _show_forecast(recipe: "Recipe", folder: Path, *, device: str, data_dir: Path | None, workers: int) -> None:
    """Print what training a recipe would take on this device."""
    from bronet.cli.console import show_facts
    from bronet.training import forecast
    from bronet.wording import duration_text

    if Share.of_this_process().world > 1:
        raise BronetError("--dry-run measures one process; give it without torchrun")
    found = forecast(recipe, device=device, data_dir=data_dir, workers=workers)
    plan, images = recipe.train, recipe.train.batch_size / found.step_seconds
    teacher = f", {duration_text(found.teacher_seconds)} of it for the teacher" if found.teacher_seconds else ""
    memory = "unknown" if found.peak_gib is None else f"{found.peak_gib:.2f} GiB"
    facts = [
        ("recipe", f"{recipe.name} on {recipe.data.name}"),
        ("parameters", f"{found.parameters:,}"),
        ("steps", f"{found.steps:,}: {plan.epochs} epochs with batches of {plan.batch_size}"),
        ("memory", f"{memory} at its peak, {'of the GPU' if device != 'cpu' else 'of this process'}"),
        ("one step", f"{1e3 * found.step_seconds:.1f} ms on average of {found.measured}, {images:,.0f} images/s"),
        ("training", f"about {duration_text(found.seconds)} on this {device}{teacher}"),
        ("run folder", f"{folder}{', which exists already' if folder.exists() else ''}; nothing was written"),
    ]
    show_facts(facts)


@contextmanager
def _resumable(data_dir: Path | None = None) -> Iterator[None]:
    """Let a signal that stops the training end the process with the signal's status, and say how to resume."""
    from bronet.training import Interrupted

    try:
        yield
    except Interrupted as stopped:
        again = options.command_for("train --resume", stopped.run, data_dir=data_dir)
        typer.echo(f"{stopped.message}; resume with: {again}", err=True)
        raise typer.Exit(stopped.exit_code) from None


def _certify(run: "RunFolder", *, device: str, data_dir: Path | None, began: float, resumed: bool) -> None:
    """Certify the test images where the network was trained, and print how long it all took.

    The time of training is the record's: that of all processes which the run took, if it was resumed. The last time is
    then of this command alone.
    """
    import gc

    import torch

    from bronet.cli.console import say
    from bronet.wording import duration_text

    gc.collect()  # what training held on a GPU may be in reference cycles
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    certificate = certify_and_show(run, device=device, data_dir=data_dir)
    training, wall = run.read_record()["seconds"], time.perf_counter() - began
    assert isinstance(training, float)  # training has just written it
    whole = "this command" if resumed or training > wall else "in all"
    say(
        f"time:    training {duration_text(training)}, proof and {certificate.images:,} images "
        f"{duration_text(certificate.seconds)}, {whole} {duration_text(wall)}"
    )
