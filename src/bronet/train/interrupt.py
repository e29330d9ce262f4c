"""Ctrl-C (SIGINT) and SIGTERM during training: finish the step, save, say how to resume.

A second signal stops at once, without saving. Outside the main thread signals cannot be caught, and are left
alone.
"""

import shlex
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

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
