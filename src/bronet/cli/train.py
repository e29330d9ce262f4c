"""`bronet train`: from a recipe to a run folder with trained weights."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bronet.cli.certify import certify_folder, show_certificate
from bronet.cli.options import (
    RUNS,
    DataDirOption,
    Device,
    DeviceOption,
    DownloadOption,
    SettingsOption,
    checked_folder,
    command_for,
    device_name,
    typed_command,
)
from bronet.errors import BronetError

if TYPE_CHECKING:
    from bronet.recipe import Recipe
    from bronet.run.folder import RunFolder
    from bronet.train import RunOptions


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="A name that `bronet recipes` lists, a YAML file, or with --resume the folder of a run.",
            show_default=False,
        ),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Run folder. Default: runs/NAME-OF-THE-RECIPE.",
            show_default=False,
            callback=checked_folder,
        ),
    ] = None,
    settings: SettingsOption = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Short for --set train.seed=N.", show_default=False)
    ] = None,
    device: DeviceOption = Device.AUTO,
    data_dir: DataDirOption = None,
    download: DownloadOption = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run's checkpoint.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in that folder.")] = False,
    workers: Annotated[
        int, typer.Option("--workers", min=0, help="Processes that decode image files (ImageNet).", metavar="N")
    ] = 0,
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
    from bronet.data import provide_images
    from bronet.train import RunOptions

    if resume and overwrite:
        raise BronetError("--resume and --overwrite exclude each other; give one of them")
    changes = [*(settings or []), *([f"train.seed={seed}"] if seed is not None else [])]
    plan, folder = _chosen(recipe, changes, out, resume=resume)
    if certify:  # images that are missing are better missed now than after the last epoch
        provide_images(plan.data, "test", data_dir=data_dir, download=download)
    run = train_recipe(
        plan,
        folder,
        device=device,
        data_dir=data_dir,
        download=download,
        resume=resume,
        overwrite=overwrite,
        command=typed_command(),
        options=RunOptions(
            workers=workers,
            deterministic=deterministic,
            track=track,
            fsdp=fsdp,
        ),
    )
    if os.environ.get("RANK", "0") != "0":  # one of torchrun's processes speaks for all, and certifies alone
        return
    typer.echo(f"trained: {run.path}")
    if certify:
        _certify(run, device=device, data_dir=data_dir, began=began, resumed=resume)
    further = command_for("report", run.path) if certify else command_for("certify", run.path, data_dir=data_dir)
    typer.echo(f"next:    {further}")


def _certify(run: "RunFolder", *, device: Device, data_dir: Path | None, began: float, resumed: bool) -> None:
    """Certify the test images where the network was trained, and print how long it all took.

    The time of training is the record's: that of all processes which the run took, if it was resumed. The last time is
    then of this command alone.
    """
    from bronet.cli.console import open_console, say
    from bronet.wording import duration_text

    _give_back_memory()
    console = open_console()
    certify_folder(run, console, device=device, data_dir=data_dir, command=typed_command())
    evidence = show_certificate(run, console)
    certificate, training, wall = evidence.certificate, evidence.training_seconds, time.perf_counter() - began
    whole = "this command" if resumed or (training is not None and training > wall) else "in all"
    say(
        console,
        f"time:    training {duration_text(training)}, proof and {certificate.images:,} images "
        f"{duration_text(certificate.seconds)}, {whole} {duration_text(wall)}",
    )


def _give_back_memory() -> None:
    """Free what training held on a GPU: objects in reference cycles, and blocks that torch keeps for later."""
    import gc

    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def train_recipe(
    recipe: "Recipe",
    folder: Path,
    *,
    device: Device,
    data_dir: Path | None = None,
    download: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    command: str,
    options: "RunOptions | None" = None,
) -> "RunFolder":
    """Train a recipe; a stop by a signal ends the process with the signal's status."""
    from bronet.data import provide_images
    from bronet.train import Interrupted
    from bronet.train import train as train_run

    place = device_name(device)
    if download:
        provide_images(recipe.data, "train", data_dir=data_dir, download=True)
    try:
        return train_run(
            recipe,
            folder,
            device=place,
            data_dir=data_dir,
            resume=resume,
            overwrite=overwrite,
            command=command,
            options=options,
        )
    except Interrupted as stopped:
        again = command_for("train --resume", stopped.run, data_dir=data_dir)
        typer.echo(f"{stopped.message}; resume with: {again}", err=True)
        raise typer.Exit(stopped.exit_code) from None


def _chosen(text: str, changes: list[str], out: Path | None, *, resume: bool) -> tuple["Recipe", Path]:
    """Return the recipe that the argument names, with some settings changed, and the folder of the run."""
    from bronet.recipe import find_recipe, override

    path = Path(text)
    if path.is_dir():
        if not resume:
            raise BronetError(
                f"RECIPE must be a name or a YAML file, got the folder {path}; to go on with it add --resume"
            )
        from bronet.run.folder import open_run

        return override(open_run(path).recipe, changes), out or path
    try:
        recipe = find_recipe(text)
    except BronetError as error:
        if not resume:
            raise
        raise BronetError(f"--resume needs the folder of a run, and {text} is no folder ({error})") from None
    recipe = override(recipe, changes)
    return recipe, out or RUNS / recipe.name.replace("/", "-")
