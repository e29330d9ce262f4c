"""A whole run, from a recipe to a folder with trained weights.

It sets the stage (folder, data, model), calls the one loop, and writes what the next stage reads.
"""

from datetime import UTC, datetime
from pathlib import Path

import torch

from bronet.errors import BronetError
from bronet.models import build_model
from bronet.recipe.dataset import dataset_spec
from bronet.recipe.schema import Recipe
from bronet.train.checkpoint import check_recipe
from bronet.train.loop import fit
from bronet.train.run_folder import RunFolder, create_run, describe_run, open_run
from bronet.train.training_set import training_set
from bronet.train.weights import save_weights


def train(
    recipe: Recipe,
    run_dir: Path | str,
    *,
    device: torch.device | str = "cpu",
    data_dir: Path | str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    command: str | None = None,
) -> RunFolder:
    """Train the recipe and return its folder, which then holds the final weights.

    Guaranteed: the same recipe gives the same bits on the same CPU with the same number of threads,
    interrupted and resumed or not. An existing run is refused unless `resume` or `overwrite` is set. The data
    are loaded and the model is built before anything is written.

    Args:
        recipe: what to train; with `resume` it must equal the checkpoint's.
        run_dir: the folder of the run, new unless `resume` or `overwrite`.
        device: where data and model live.
        data_dir: where the data set's files are; the embedded digits need none.
        resume: go on from the run's checkpoint, or from the start if there is none yet.
        overwrite: remove the run that is there.
        progress: show a bar on a terminal and lines elsewhere.
        command: what the record names as the command; this process's command line by default.
    """
    place = _checked_device(device, recipe)
    folder = Path(run_dir)
    if resume:
        run = open_run(folder)
        check_recipe(run.recipe_file, run.recipe(), recipe)
    images = training_set(recipe.data, data_dir=Path(data_dir) if data_dir else None).to(place)
    spec = dataset_spec(recipe.data.name)
    model = build_model(recipe.model, spec, seed=recipe.train.seed, device=place)
    if not resume:
        run = create_run(folder, recipe, overwrite=overwrite)
    record = describe_run(recipe, device=place, command=command)
    seconds = fit(recipe, model, images, run, resume=resume, progress=progress)
    save_weights(run.weights, model, recipe=recipe)
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    run.write_record(record | {"finished": finished, "seconds": round(seconds, 3)})
    return run


def _checked_device(device: torch.device | str, recipe: Recipe) -> torch.device:
    try:
        place = torch.device(device)
    except RuntimeError:
        raise BronetError(f'device must be "cpu" or "cuda", got {device!r}') from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise BronetError(f"device must be available, got {place}: no CUDA device was found; use cpu")
    if place.type == "cpu" and recipe.train.precision == "bf16":
        # No gain there, and some processors announce bf16 instructions that they then refuse to run.
        raise BronetError("train.precision must be float32 on a CPU, got bf16; train on cuda or change it")
    return place
