"""What scripts can rely on: the exit status of every command.

0 done; 1 a fault of this program, with a traceback; 2 a mistake in what was given, told in one line; 3 a certificate
that an attack has broken; 130 after Ctrl-C and 143 after SIGTERM. A process that is killed outside training ends by the
signal itself, which a shell also shows as 143.
"""

import errno
import os
import sys
from enum import IntEnum
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from bronet.errors import BronetError

SYSTEM_REFUSALS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ELOOP}
)
"""Full disk, full quota, read-only or forbidden place, a folder in place of a file, links in a circle: the user can
change it, this program cannot."""


class ExitStatus(IntEnum):
    """Statuses besides success and those of a signal."""

    USER_ERROR = 2
    BROKEN_CERTIFICATE = 3
    CTRL_C = 130


class Commands(TyperGroup):
    """The group of all commands: turns what they raise into one line on stderr and an exit status."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command; a fault of this program passes through with its traceback."""
        try:
            return super().invoke(ctx)
        except BronetError as error:
            raise _ended(f"error: {error}", ExitStatus.USER_ERROR) from None
        except KeyboardInterrupt:
            raise _ended("interrupted", ExitStatus.CTRL_C) from None
        except OSError as error:
            if error.errno not in SYSTEM_REFUSALS:
                raise
            where = f" {error.filename}" if error.filename else ""
            raise _ended(f"error: the system refused{where}: {error.strerror}", ExitStatus.USER_ERROR) from None


def leave(status: object) -> NoReturn:
    """End this process at once with a status, as `sys.exit` takes it; what was printed is flushed.

    For the processes of torchrun: threads of their connections that are still alive while the interpreter takes itself
    apart can abort it, after all the work is done and written.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else int(status is not None))


def _ended(message: str, status: int) -> typer.Exit:
    """Print one line on stderr and return the exception that ends the process with the status."""
    typer.echo(" ".join(message.splitlines()), err=True)
    return typer.Exit(status)
