"""The command `bronet`: parse, call, print.

Nothing heavy is imported before a command needs it, so that `bronet --help` answers at once. What a command
promises to scripts is its exit status; see `bronet.cli.exit_status`.
"""

import os
import re
import signal
import sys
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from bronet.__about__ import __version__
from bronet.cli.attack import attack
from bronet.cli.bench import bench
from bronet.cli.certify import certify, check, verify
from bronet.cli.exit_status import SYSTEM_REFUSALS, ExitStatus, exit_at_once
from bronet.cli.info import data_app, info, recipes_app
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
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is told once
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
app.command("import-published")(import_published)
app.add_typer(recipes_app, name="recipes")
app.add_typer(data_app, name="data")
app.command()(bench)
app.command()(check)
app.command()(info)


def main() -> None:
    """Run the command line of this process and end it with the status that scripts can use."""
    for stream in (sys.stdout, sys.stderr):  # a name that the terminal cannot show must not end a command
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="bronet")
    except SystemExit as end:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            exit_at_once(end.code)
        raise
