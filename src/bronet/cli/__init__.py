"""The command `bronet`: parse, call, print.

Nothing heavy is imported before a command needs it, so that `bronet --help` answers at once. What a command promises to
scripts is its exit status: 0 done; 1 a fault of this program, with a traceback; 2 a mistake in what was given, told in
one line; 3 a certificate that an attack has broken; 130 after Ctrl-C and 143 after SIGTERM. A process that is killed
outside training ends by the signal itself, which a shell also shows as 143.
"""

import errno
import os
import re
import signal
import sys
from enum import IntEnum
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from bronet.__about__ import __version__
from bronet.cli.attack import attack
from bronet.cli.bench import bench
from bronet.cli.certify import certify, check, verify
from bronet.cli.info import data_app, info, recipes_app
from bronet.cli.memory import keep_freed_memory
from bronet.cli.options import LayersOption, run_layer_files
from bronet.cli.report import export, import_published, report, serve
from bronet.cli.train import quickstart, train
from bronet.errors import BronetError
from bronet.run.shares import ShareDone

UsageError: Any = typer.BadParameter.__mro__[1]
"""A command line that cannot be read. Which module holds this class differs between versions of typer."""
BAD_VALUE = re.compile(r"Invalid value for '?(?P<option>[^']+?)'?: (?:Value error, )?(?P<rule>.*)")
EXPECTED = "Input should be "
REFUSED_VALUE = re.compile(r"input_value=(.+), input_type=")
DEALT_OUT = frozenset({"train", "certify", "attack"})
"""Commands that the processes of torchrun share; of any other, the first does the work."""
COMPUTES = DEALT_OUT | {"quickstart", "verify", "bench"}
"""Commands that keep the memory they free until they end."""
REFUSALS = "ENOSPC EDQUOT EROFS EACCES EPERM EISDIR ENOTDIR ELOOP ENAMETOOLONG"
SYSTEM_REFUSALS = frozenset(getattr(errno, name) for name in REFUSALS.split())
"""Full disk, full quota, read-only or forbidden place, a folder in place of a file, links in a circle, an overlong
name: the user can change it, this program cannot."""


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
        if found[0] in COMPUTES:
            keep_freed_memory()
        return found

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command; a fault of this program passes through with its traceback."""
        try:
            return super().invoke(ctx)
        except UsageError as error:
            raise _usage_error(error) from None
        except ShareDone:
            raise typer.Exit from None
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is told once
            raise _exit_with("interrupted", ExitStatus.CTRL_C) from None
        except Exception as error:
            if mistake := _mistake(error):
                raise _exit_with(f"error: {mistake}") from None
            raise


def _mistake(error: Exception) -> str:
    """Return what to tell of an error that the user can mend; "" of a fault of this program."""
    if isinstance(error, BronetError):
        return str(error)
    if isinstance(error, OSError) and error.errno in SYSTEM_REFUSALS:
        return f"the system refused{f' {error.filename}' if error.filename else ''}: {error.strerror}"
    # torch has no class for a machine without memory; that for a GPU is not imported here.
    if (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    ):
        reason = str(error).partition("\n")[0] or "none is left"
        return f"there is not enough memory ({reason}); take fewer images at once or a smaller network"
    return ""


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
    return _exit_with(f"error: {text[0].lower()}{text[1:].rstrip('.')}; see {command} --help")


def _exit_with(message: str, status: int = ExitStatus.USER_ERROR) -> typer.Exit:
    """Print one line on stderr and return the exception that ends the process with the status.

    What a terminal would obey instead of showing, as names in a hostile file may hold it, is spelled out.
    """
    line = " ".join(message.splitlines())
    typer.echo("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line), err=True)
    return typer.Exit(status)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help starts sooner and can be piped
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"bronet {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def bronet(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    layers: LayersOption = None,
) -> None:
    """Neural networks whose robustness is proved.

    Train a network, prove for every image a radius within which its class cannot change, and report it.

    Start here:  bronet quickstart
    """
    run_layer_files(layers or [])


# The order of the help page: the order in which a newcomer needs them.
for command in (quickstart, train, certify, report, verify, attack, serve, export):
    app.command()(command)
app.command()(import_published)
app.command()(bench)
app.command()(check)
app.command()(info)
app.add_typer(recipes_app, name="recipes")
app.add_typer(data_app, name="data")


def main() -> None:
    """Run the command line of this process and end it with the status that scripts can use."""
    for stream in (sys.stdout, sys.stderr):  # a name that the terminal cannot show must not end a command
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="bronet")
    except OSError as error:  # of what is printed before a command begins, such as --help
        if not (mistake := _mistake(error)):
            raise
        _unwritten()
        raise SystemExit(_exit_with(f"error: {mistake}").exit_code) from None
    except SystemExit as end:
        lost = _unwritten()
        if lost is not None and not end.code and (mistake := _mistake(lost)):
            raise SystemExit(_exit_with(f"error: {mistake}").exit_code) from None
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            exit_at_once(end.code)
        raise


def _unwritten() -> OSError | None:
    """Write what waits to be printed, or drop it and return why: Python would fail with it once more at its end."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None


def exit_at_once(status: object) -> NoReturn:
    """End this process at once with a status, as `sys.exit` takes it; what was printed is flushed.

    For the processes of torchrun: threads of their connections that are still alive while the interpreter takes itself
    apart can abort it, after all the work is done and written.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else int(status is not None))
