"""`python -m bronet`, and the command `bronet`: a command line that Ctrl-C ends in one line at any moment."""

import os
import signal
import sys
from types import FrameType

CTRL_C_STATUS = 128 + signal.SIGINT


class CtrlC:
    """What Ctrl-C does: the first one lets a command tidy up, a further one ends the process at once."""

    pressed = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.pressed:
            end_at_once()
        self.pressed = True
        raise KeyboardInterrupt

    def swallowed(self, ignored: "sys.UnraisableHookArgs") -> None:
        """End the process where Python can only print that an exception was ignored, as while it frees an object."""
        if issubclass(ignored.exc_type, KeyboardInterrupt):
            end_at_once()
        sys.__unraisablehook__(ignored)


def end_at_once() -> None:
    """End this process with the line and the status of Ctrl-C, and with a cursor."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout.write("\033[?25h" if sys.stdout.isatty() else "")
    sys.stdout.flush()
    os.write(2, b"interrupted\n")
    os._exit(CTRL_C_STATUS)


def main() -> None:
    """Run the command line of this process."""
    ctrl_c = CtrlC()
    sys.unraisablehook = ctrl_c.swallowed
    try:
        signal.signal(signal.SIGINT, ctrl_c)
        from bronet.cli import main as run

        run()
    except KeyboardInterrupt:
        end_at_once()
    except SystemExit as end:
        if end.__context__ is not None and isinstance(end.__context__.__cause__, KeyboardInterrupt):
            end_at_once()  # typer ends in silence where Ctrl-C comes before a command begins or when it has ended
        raise
    finally:  # all is done
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    main()
