"""Rounding trained weights to bf16, before anything is proved of them.

Any values of the parameters give layers with proved bounds, so rounding costs accuracy (a little) and never soundness,
as long as the certificate is made from the rounded weights. Kernels and matrices become bf16; vectors (biases, means,
alpha) stay as they are: they are small, and a rounded mean would shift every activation.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.files import read_object, replace_bytes
from bronet.recipe.schema import Recipe
from bronet.recipe.text import to_text
from bronet.run.folder import RunFolder, create_run, open_run, remove_run
from bronet.run.weights import KIND, RECIPE_KEY, load_model, write_tensors

REMARK = "kernels and matrices rounded to bf16 after training"


def rounded(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with two or more dimensions as bf16, the others unchanged."""
    return {
        name: tensor.to(torch.bfloat16) if tensor.ndim > 1 and tensor.is_floating_point() else tensor
        for name, tensor in state.items()
    }


def save_rounded(path: Path, model: nn.Module, *, recipe: Recipe) -> None:
    """Write the rounded weights with the recipe; rounding twice gives the same bytes as rounding once."""
    write_tensors(path, KIND, rounded(model.state_dict()), {RECIPE_KEY: to_text(recipe)})


def round_run(run_dir: Path | str, out: Path | str) -> RunFolder:
    """Return a new run folder with the rounded weights, the recipe, the log and the record of a run.

    The record says that they are rounded. Nothing that was proved of the run is copied: certify the new one.
    """
    run, out = open_run(Path(run_dir)), Path(out)
    if out.resolve() == run.path.resolve():
        raise BronetError(f"--out must be another folder than the run's, got {out}")
    recipe = run.recipe
    model = load_model(run)
    record = {**read_object(run.record), "weights": REMARK} if run.record.exists() else None
    result = create_run(out, recipe)
    try:
        if run.log.exists():
            replace_bytes(result.log, run.log.read_bytes())
        if record is not None:
            result.write_record(record)
        save_rounded(result.weights, model, recipe=recipe)
    except BaseException:  # also Ctrl-C: half a run would be in the way of the next attempt
        remove_run(result)
        raise
    return result
