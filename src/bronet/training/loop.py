"""The training loop, the only one: App. B.5 from the first step to the last, and the signals that ask it to stop.

It takes the steps of anything that learns: a recipe's network (`Training`), its teacher (`Lessons`), or a network of an
experiment. All randomness follows from (seed, purpose, epoch, step), so a resumed run repeats the bits of an
uninterrupted one on a CPU; on a GPU the arithmetic may reorder sums.

Ctrl-C (SIGINT) and SIGTERM let the step finish and the state be saved. A second signal stops at once, without saving.
Outside the main thread signals cannot be caught, and are not touched.
"""

import shlex
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from bronet.data import Batch
from bronet.training.distributed import ALONE, Processes

CHECK_EVERY = 20
"""Steps between two checks of how training goes: each check waits for the device."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXIT_CODE_OF_SIGNALS = 128  # the shell's convention: 128 + the number of the signal


class Interrupted(Exception):  # noqa: N818 - not an error: the run is safe
    """Training was asked to stop and has saved its state; as text it says how to resume."""

    def __init__(self, message: str, *, run: Path, signal_number: int) -> None:
        super().__init__(f"{message}; resume with: bronet train --resume {shlex.quote(str(run))}")
        self.message, self.run = message, run
        self.exit_code = EXIT_CODE_OF_SIGNALS + signal_number


@dataclass
class StopRequest:
    """The signal that arrived, if any, while a run was trained."""

    run: Path = Path()
    signal_number: int | None = None

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Remember the first signal; the second one is a KeyboardInterrupt right away."""
        if self.signal_number is not None:
            raise KeyboardInterrupt
        self.signal_number = number


@contextmanager
def stop_requests(run: Path) -> Iterator[StopRequest]:
    """Catch SIGINT and SIGTERM inside the block, and restore the previous handlers after it."""
    request = StopRequest(run)
    caught = SIGNALS if threading.current_thread() is threading.main_thread() else ()
    previous = {number: signal.signal(number, request.receive) for number in caught}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class Learner:
    """What the loop trains; a kind of it must have the first method."""

    def step(self, batch: Batch, number: int) -> None:
        """Take a step, counted from 0, on a batch."""

    def check(self, step: int) -> None:
        """Check after `step` steps how it goes: every `CHECK_EVERY` steps, and at the end of an epoch."""

    def end_epoch(self, epoch: int) -> None:
        """Close an epoch, counted from 1."""

    def stop(self, step: int) -> str:
        """Save what is to be kept after `step` steps, and return in words where training stopped; "" goes on."""
        return ""


def training_loop(
    learner: Learner,
    batches: Iterable[Batch],
    *,
    steps_per_epoch: int,
    first_step: int = 0,
    stop: StopRequest | None = None,
    processes: Processes = ALONE,
) -> None:
    """Take a step on every batch; the first of them has the number `first_step`."""
    stop = stop or StopRequest()
    for step, batch in enumerate(batches, start=first_step + 1):
        learner.step(batch, step - 1)
        ends_epoch = step % steps_per_epoch == 0
        checks = ends_epoch or step % CHECK_EVERY == 0
        # Processes can only stop together, and asking all of them costs time, so several ask at a check only.
        signal_number = processes.agreed_signal(stop.signal_number) if checks or processes.world == 1 else None
        if checks or signal_number is not None:
            learner.check(step)
        if ends_epoch:
            learner.end_epoch(step // steps_per_epoch)
        if signal_number is not None and (message := learner.stop(step)):
            raise Interrupted(message, run=stop.run, signal_number=signal_number)
