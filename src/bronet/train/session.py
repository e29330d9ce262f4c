"""What surrounds a training run in its process: signals that ask it to stop, and settings that make it repeat its bits.

Ctrl-C (SIGINT) and SIGTERM let the step finish and the state be saved. A second signal stops at once, without saving.
Outside the main thread signals cannot be caught, and are not touched.
"""

import os
import shlex
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch

from bronet.errors import BronetError

SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXIT_CODE_OF_SIGNALS = 128  # the shell's convention: 128 + the number of the signal


class Interrupted(Exception):  # noqa: N818 - not an error: the run is safe
    """Training was asked to stop and has saved its state; as text it says how to resume."""

    def __init__(self, message: str, *, run: Path, signal_number: int) -> None:
        super().__init__(f"{message}; resume with: bronet train --resume {shlex.quote(str(run))}")
        self.message, self.run = message, run
        self.exit_code = EXIT_CODE_OF_SIGNALS + signal_number


class StopRequest:
    """The signal that arrived, if any."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Remember the first signal; the second one is a KeyboardInterrupt right away."""
        if self.signal_number is not None:
            raise KeyboardInterrupt
        self.signal_number = number


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Catch SIGINT and SIGTERM inside the block, and restore the previous handlers after it."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    previous = {number: signal.signal(number, request.receive) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


WORKSPACE_VARIABLE, WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
FIXED_WORKSPACES = (WORKSPACE, ":16:8")
"""cuBLAS repeats its sums only with a workspace of fixed size; torch looks once, at its first product on a GPU."""


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Inside, allow only operations that repeat their bits on one GPU, at some cost in speed; a CPU always does.

    An operation that cannot raises an error. The same recipe then gives the same weights on the same kind of GPU with
    the same software; another GPU or version may differ, and so may another number of processes.
    CUDA must not have started without a fixed workspace: it is too late then, which is a `BronetError`.
    """
    if not wanted:
        yield
        return
    found = os.environ.get(WORKSPACE_VARIABLE)
    if found not in FIXED_WORKSPACES and torch.cuda.is_initialized():
        raise BronetError(
            f"{WORKSPACE_VARIABLE} must be {WORKSPACE} before CUDA starts for a deterministic run, got {found}; "
            "set it in the environment of the program"
        )
    os.environ[WORKSPACE_VARIABLE] = found if found in FIXED_WORKSPACES else WORKSPACE
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]
