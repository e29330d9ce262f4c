"""What scripts can rely on: the exit status of every command.

0 done; 1 a fault of this program, with a traceback; 2 a mistake in what was given, told in one line; 3 a certificate
that an attack has broken; 130 after Ctrl-C and 143 after SIGTERM. A process that is killed outside training ends by the
signal itself, which a shell also shows as 143.
"""

import errno
import os
import sys
from enum import IntEnum
from typing import NoReturn

REFUSALS = "ENOSPC EDQUOT EROFS EACCES EPERM EISDIR ENOTDIR ELOOP ENAMETOOLONG"
SYSTEM_REFUSALS = frozenset(getattr(errno, name) for name in REFUSALS.split())
"""Full disk, full quota, read-only or forbidden place, a folder in place of a file, links in a circle, an overlong
name: the user can change it, this program cannot."""


class ExitStatus(IntEnum):
    """Statuses besides success and those of a signal."""

    USER_ERROR = 2
    BROKEN_CERTIFICATE = 3
    CTRL_C = 130


def exit_at_once(status: object) -> NoReturn:
    """End this process at once with a status, as `sys.exit` takes it; what was printed is flushed.

    For the processes of torchrun: threads of their connections that are still alive while the interpreter takes itself
    apart can abort it, after all the work is done and written.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else int(status is not None))
