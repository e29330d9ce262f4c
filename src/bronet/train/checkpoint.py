"""The whole state of a training run in one safetensors file, from which it resumes to the same bits on a CPU.

It holds weights, their average if there is one, optimiser state, Lookahead's slow weights, the tally of the
running epoch and the step.
There is no random state, because every draw follows from (seed, purpose, epoch, step). Bits on a GPU may
differ.
"""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.recipe.schema import Recipe
from bronet.recipe.text import differing_keys, flatten, from_text, to_text
from bronet.records import as_plain
from bronet.run.weights import fitting, read_tensors, save_weights, write_tensors
from bronet.train.average import WeightAverage
from bronet.train.lookahead import Lookahead
from bronet.train.sharding import cut, gathered, part_of

KIND = "checkpoint"
METADATA_KEYS = ("recipe", "step", "seconds")
MODEL, OPTIMIZER, AVERAGE, TALLY = "model.", "optimizer.", "average.", "tally"
LONGEST_NUMBER = 24
MOST_KEYS_SHOWN = 5


class Progress(NamedTuple):
    """How far a run has come: steps taken, seconds of training, and the running epoch's tally."""

    step: int
    seconds: float
    tally: Tensor


def save_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: Lookahead,
    progress: Progress,
    *,
    recipe: Recipe,
    average: WeightAverage | None = None,
    writes: bool = True,
) -> None:
    """Write the training state atomically: a failure leaves the previous checkpoint as it was.

    Of a run's processes one `writes`; where the model is sharded, all must call this.
    """
    tensors = {MODEL + name: tensor for name, tensor in model.state_dict().items()}
    tensors |= {OPTIMIZER + name: tensor for name, tensor in optimizer.tensors().items()}
    tensors |= {AVERAGE + name: tensor for name, tensor in (average.tensors() if average else {}).items()}
    tensors[TALLY] = progress.tally
    tensors = gathered(tensors, kept=writes)
    if not writes:
        return
    metadata = {
        "recipe": to_text(recipe),
        "step": str(progress.step),
        "seconds": repr(progress.seconds),
    }
    write_tensors(path, KIND, tensors, metadata)


def save_model(path: Path, model: nn.Module, *, recipe: Recipe, writes: bool = True) -> None:
    """Write the model's weights as a file of their own, with the recipe.

    Of a run's processes one `writes`; where the model is sharded, all must call this.
    """
    state = gathered(model.state_dict(), kept=writes)
    if writes:
        save_weights(path, state, recipe=recipe)


def load_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: Lookahead,
    *,
    recipe: Recipe,
    tally: Tensor,
    average: WeightAverage | None = None,
) -> Progress:
    """Restore model and optimiser in place and return the progress.

    The recipe must be the one the checkpoint was made with; the differing settings are named otherwise.
    `tally` shows the shape of a tally; it is not changed.
    """
    tensors, metadata = read_tensors(path, KIND, METADATA_KEYS)
    check_recipe(path, from_text(metadata["recipe"]), recipe)
    step, seconds = _number(path, "step", metadata["step"]), _number(path, "seconds", metadata["seconds"])
    stored_tally = tensors.pop(TALLY, None)
    if stored_tally is None or stored_tally.shape != tally.shape or stored_tally.dtype != tally.dtype:
        raise BronetError(f"{path} must be a bronet checkpoint file, but its tally is missing or damaged")
    weights, averaged = _below(MODEL, tensors), _below(AVERAGE, tensors)
    state = {name.removeprefix(OPTIMIZER): t for name, t in tensors.items() if not name.startswith((MODEL, AVERAGE))}
    _copy_into(model, weights, path)
    optimizer.load_tensors(state, steps_taken=int(step))
    if average is not None:
        average.load_tensors(averaged)
    return Progress(int(step), seconds, stored_tally.to(tally.device))


@torch.no_grad()
def _copy_into(model: nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    """Copy whole tensors into the model, of which this process may hold a part, all or none."""
    state = model.state_dict()
    for name, tensor in fitting(weights, state, path).items():
        part_of(state[name]).copy_(cut(tensor, state[name]))


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def check_recipe(path: Path, stored: Recipe, wanted: Recipe) -> None:
    """Refuse to go on with another recipe than the one stored at `path`; name what differs."""
    keys = differing_keys(stored, wanted)
    if not keys:
        return
    old, new = flatten(as_plain(stored)), flatten(as_plain(wanted))
    shown = ", ".join(f"{key}: {old.get(key)} -> {new.get(key)}" for key in keys[:MOST_KEYS_SHOWN])
    more = f" and {len(keys) - MOST_KEYS_SHOWN} more" if len(keys) > MOST_KEYS_SHOWN else ""
    raise BronetError(
        f"{path} was made with another recipe ({shown}{more}); resume with the old one, or start a new run"
    )


def _number(path: Path, name: str, text: str) -> float:
    """Read a count or a time that a hostile file may have turned into anything."""
    try:
        value = float(text) if len(text) <= LONGEST_NUMBER else -1.0
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise BronetError(f"{name} in {path} must be a number of at least 0, got {text[:LONGEST_NUMBER]!r}")
    return value
