"""The whole state of a training run in one safetensors file, from which it resumes to the same bits on a CPU.

It holds weights, optimiser, Lookahead, the average, the tally of the running epoch and the step. There is no random
state, because every draw follows from (seed, purpose, epoch, step). Bits on a GPU may differ.

The newest checkpoint of a run has its own name, older ones are numbered by their step. A new one is written whole
before an old one goes, so at every moment at least one is usable. A checksum covers all of it, and a file that a bit
has changed is not read.
"""

import hashlib
import json
import os
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.recipe.schema import Recipe
from bronet.recipe.text import differing_keys, dotted, from_text, to_text
from bronet.records import as_plain
from bronet.run.folder import RunFolder
from bronet.run.weights import check_fit, fitting, read_tensors, save_weights, write_tensors
from bronet.training.distributed import Processes, Stored, copy_wholes, gathered
from bronet.training.statistics import Tally

KIND = "checkpoint"
METADATA_KEYS = ("recipe", "step", "seconds")
CHECKSUM = "sha256"
MODEL, TALLY = "model.", "tally"
MAX_KEYS_SHOWN = 5


@dataclass
class Checkpoints:
    """The checkpoints of a run, as many as its recipe keeps. The first process writes them; all read the same file."""

    run: RunFolder
    recipe: Recipe
    model: nn.Module
    parts: Mapping[str, Stored | None]
    tally: Tally
    processes: Processes
    saved_step: int = 0

    def save(self, step: int, seconds: float) -> None:
        """Write the state after `step` steps, atomically: a failure leaves the previous checkpoint as it was."""
        keep, is_main = self.recipe.train.keep_checkpoints, self.processes.is_main
        if is_main and keep > 1 and self.saved_step != step:
            self._set_aside()
        tensors = gathered(self._weights() | self._parts() | {TALLY: self.tally.total()}, kept=is_main)
        if is_main:
            metadata = {"recipe": to_text(self.recipe), "step": str(step), "seconds": repr(seconds)}
            metadata[CHECKSUM] = checksum(tensors, metadata)
            write_tensors(self.run.checkpoint, KIND, tensors, metadata)
            for old in self.run.older_checkpoints()[keep - 1 :]:
                old.unlink(missing_ok=True)
        self.saved_step = step

    def restore(self, *, total_steps: int) -> tuple[int, float]:
        """Load the newest checkpoint that can be read and return the steps taken and the seconds spent.

        A damaged one is passed over if there is an older one; one of another recipe is refused.
        """
        paths = [path for path in (self.run.checkpoint, *self.run.older_checkpoints()) if path.exists()]
        for path in paths:
            try:
                step, seconds = self.load(path)
            except BronetError:
                if path == paths[-1]:
                    raise
                continue
            if step > total_steps:
                raise BronetError(f"step in {path} must be at most {total_steps}, got {step}")
            self.saved_step = step
            return step, seconds
        return 0, 0.0

    def load(self, path: Path) -> tuple[int, float]:
        """Restore the state in place and return its step and its seconds; nothing changes if anything does not fit."""
        tensors, metadata = read_tensors(path, KIND, (*METADATA_KEYS, CHECKSUM))
        if metadata[CHECKSUM] != checksum(tensors, metadata):
            raise BronetError(
                f"{path} must have its own checksum, but its content was changed; remove it to resume from an older "
                "checkpoint or from the start, or restore it from a copy"
            )
        check_recipe(path, from_text(metadata["recipe"]), self.recipe)
        step, seconds = _number(path, "step", metadata["step"]), _number(path, "seconds", metadata["seconds"])
        weights = {name: tensor for name, tensor in tensors.items() if name.startswith(MODEL)}
        others = {name: tensor for name, tensor in tensors.items() if name not in weights}
        weights = fitting(weights, state := self._weights(), path)
        check_fit(path, others, (parts := self._parts()) | {TALLY: self.tally.sums})
        copy_wholes(weights | others, into=state | parts)
        if self.processes.is_main:  # the tally is of all processes: one of them goes on with it
            self.tally.sums.copy_(others[TALLY])
        return int(step), seconds

    def _weights(self) -> dict[str, Tensor]:
        return {f"{MODEL}{name}": tensor for name, tensor in self.model.state_dict().items()}

    def _parts(self) -> dict[str, Tensor]:
        kept = {part: stored.tensors() for part, stored in self.parts.items() if stored is not None}
        return {f"{part}.{key}": tensor for part, tensors in kept.items() for key, tensor in tensors.items()}

    def _set_aside(self) -> None:
        """Give the present checkpoint a number of its own.

        If one has that number, the run was resumed from it, and the present checkpoint is the same or damaged.
        """
        present = self.run.checkpoint
        numbered = self.run.numbered_checkpoint(self.saved_step)
        if not present.exists() or numbered.exists():
            return
        try:
            os.link(present, numbered)
        except OSError as error:
            raise BronetError(
                f"could not keep {present} as {numbered} ({error}); set train.keep_checkpoints=1"
            ) from None


def save_model(path: Path, model: nn.Module, *, recipe: Recipe, writes: bool = True) -> None:
    """Write the model's weights as a file of their own, with the recipe.

    Of a run's processes one `writes`; where the model is sharded, all must call this.
    """
    state = gathered(model.state_dict(), kept=writes)
    if writes:
        save_weights(path, state, recipe=recipe)


def check_recipe(path: Path, stored: Recipe, wanted: Recipe) -> None:
    """Refuse to go on with another recipe than the one stored at `path`; name what differs."""
    old, new = dotted(as_plain(stored)), dotted(as_plain(wanted))
    if keys := differing_keys(stored, wanted):
        shown = ", ".join(f"{key}: {old.get(key)} -> {new.get(key)}" for key in keys[:MAX_KEYS_SHOWN])
        more = f" and {len(keys) - MAX_KEYS_SHOWN} more" if len(keys) > MAX_KEYS_SHOWN else ""
        raise BronetError(
            f"{path} was made with another recipe ({shown}{more}); resume with the old one, or start a new run"
        )


def checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Return the SHA-256 of a checkpoint: names, kinds, shapes and bytes of the tensors, and the metadata."""
    found = hashlib.sha256(json.dumps([metadata[key] for key in METADATA_KEYS]).encode())
    for name, tensor in sorted(tensors.items()):
        plain = tensor.detach().cpu().contiguous()
        found.update(f"{name} {plain.dtype} {tuple(plain.shape)} ".encode())
        found.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _number(path: Path, name: str, text: str) -> float:
    """Read a count or a time that a hostile file may have turned into anything."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise BronetError(f"{name} in {path} must be a number of at least 0, got {reprlib.repr(text)}")
    return value
