"""The command `bronet`: parse, call, print.

Nothing heavy is imported before a command needs it, so that `bronet --help` answers at once. What a command
promises to scripts is its exit status; see `bronet.cli.exit_status`.
"""

import os
import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from bronet.__about__ import __version__
from bronet.cli.attack import attack
from bronet.cli.certify import certify, check, verify
from bronet.cli.exit_status import Commands, exit_at_once
from bronet.cli.info import bench, data_app, info, recipes_app
from bronet.cli.options import LayersOption, run_layer_files
from bronet.cli.report import export, report, serve
from bronet.cli.train import quickstart, train

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
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
