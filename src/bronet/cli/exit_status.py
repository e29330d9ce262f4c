"""What scripts can rely on: the exit status of every command.

0 done; 1 a fault of this program, with a traceback; 2 a mistake in what was given, told in one line; 3 a certificate
that an attack has broken; 130 after Ctrl-C and 143 after SIGTERM. A process that is killed outside training ends by the
signal itself, which a shell also shows as 143.
"""

import errno
import os
import re
import sys
from enum import IntEnum
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from bronet.errors import BronetError
from bronet.run.shares import ShareDone

REFUSALS = "ENOSPC EDQUOT EROFS EACCES EPERM EISDIR ENOTDIR ELOOP ENAMETOOLONG"
SYSTEM_REFUSALS = frozenset(getattr(errno, name) for name in REFUSALS.split())
"""Full disk, full quota, read-only or forbidden place, a folder in place of a file, links in a circle, an overlong
name: the user can change it, this program cannot."""

UsageError: Any = typer.BadParameter.__mro__[1]
"""A command line that cannot be read. Which module holds this class differs between versions of typer."""
BAD_VALUE = re.compile(r"Invalid value for '?(?P<option>[^']+?)'?: (?:Value error, )?(?P<rule>.*)")
EXPECTED = "Input should be "
REFUSED_VALUE = re.compile(r"input_value=(.+), input_type=")
DEALT_OUT = frozenset({"train", "certify", "attack"})
"""Commands that the processes of torchrun share; of any other, the first does the work."""


class ExitStatus(IntEnum):
    """Statuses besides success and those of a signal."""

    USER_ERROR = 2
    BROKEN_CERTIFICATE = 3
    CTRL_C = 130


class Commands(TyperGroup):
    """The group of all commands: turns what they raise into one line on stderr and an exit status."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words up to the name of the command."""
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            raise _usage_error(error) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; torchrun's processes other than the first end here, unless they share its work."""
        found = super().resolve_command(ctx, args)
        if found[0] not in DEALT_OUT:
            if os.environ.get("RANK", "0") != "0":
                raise typer.Exit
            os.environ.pop("WORLD_SIZE", None)  # so that the first waits for nobody
        return found

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command; a fault of this program passes through with its traceback."""
        try:
            return super().invoke(ctx)
        except BronetError as error:
            raise _exit_with(f"error: {error}", ExitStatus.USER_ERROR) from None
        except UsageError as error:
            raise _usage_error(error) from None
        except ShareDone:
            raise typer.Exit from None
        except KeyboardInterrupt:
            raise _exit_with("interrupted", ExitStatus.CTRL_C) from None
        except OSError as error:
            if error.errno not in SYSTEM_REFUSALS:
                raise
            where = f" {error.filename}" if error.filename else ""
            raise _exit_with(f"error: the system refused{where}: {error.strerror}", ExitStatus.USER_ERROR) from None
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            reason = str(error).partition("\n")[0] or "none is left"
            advice = "take fewer images at once or a smaller network"
            raise _exit_with(f"error: there is not enough memory ({reason}); {advice}", ExitStatus.USER_ERROR) from None


def _is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out, of this machine or of a GPU; torch has no class for the former."""
    cpu = "can't allocate memory" in str(error)
    return cpu or isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def exit_at_once(status: object) -> NoReturn:
    """End this process at once with a status, as `sys.exit` takes it; what was printed is flushed.

    For the processes of torchrun: threads of their connections that are still alive while the interpreter takes itself
    apart can abort it, after all the work is done and written.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else int(status is not None))


def _usage_error(error: Any) -> Exception:
    """Print in one line what is wrong with a command line and return the exception that ends the process.

    The help page of a group of commands, which comes as such an error, is returned as it is.
    """
    text = error.format_message().strip()
    if "\n" in text or not text:
        return error  # type: ignore[no-any-return]
    if bad := BAD_VALUE.fullmatch(text):
        option, rule = bad["option"], bad["rule"]
        text = f"{option} must be {rule.removeprefix(EXPECTED)}" if rule.startswith(EXPECTED) else f"{option}: {rule}"
        given = REFUSED_VALUE.search(str(error.__cause__))
        if given and given[1] not in text:
            text = f"{text.partition(',')[0]}, got {given[1]}"
    command = error.ctx.command_path if error.ctx else "bronet"
    return _exit_with(f"error: {text[0].lower()}{text[1:].rstrip('.')}; see {command} --help", ExitStatus.USER_ERROR)


def _exit_with(message: str, status: int) -> typer.Exit:
    """Print one line on stderr and return the exception that ends the process with the status."""
    typer.echo(" ".join(message.splitlines()), err=True)
    return typer.Exit(status)
