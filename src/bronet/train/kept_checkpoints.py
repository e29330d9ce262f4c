"""The last few checkpoints of a run: the newest under its own name, older ones numbered by their step.

A new one is written whole before an old one goes, so at every moment at least one is usable. Resuming takes the newest
that can be read.
"""

import os
from pathlib import Path

from bronet.errors import BronetError
from bronet.run.folder import RunFolder

STEP_DIGITS = 9


def older_checkpoints(run: RunFolder) -> list[Path]:
    """Return the numbered checkpoints, newest first."""
    return sorted(run.path.glob(f"checkpoint-{'[0-9]' * STEP_DIGITS}.safetensors"), reverse=True)


def set_aside(run: RunFolder, *, step: int, keep: int) -> None:
    """Give the present checkpoint, of `step` steps, a number of its own if more than one is to be kept.

    If one has that number, the run was resumed from it, and the present checkpoint is the same or damaged.
    """
    numbered = run.path / f"checkpoint-{step:0{STEP_DIGITS}d}.safetensors"
    if keep == 1 or not run.checkpoint.exists() or numbered.exists():
        return
    try:
        os.link(run.checkpoint, numbered)
    except OSError as error:
        raise BronetError(
            f"could not keep {run.checkpoint} as {numbered} ({error}); set train.keep_checkpoints=1"
        ) from None


def drop_old(run: RunFolder, *, keep: int) -> None:
    """Remove numbered checkpoints beyond the `keep` - 1 newest."""
    for path in older_checkpoints(run)[keep - 1 :]:
        path.unlink(missing_ok=True)
