"""The command `bronet`: parse, call, print.

Nothing heavy is imported before a command needs it, so that `bronet --help` answers at once. What a command
promises to scripts is its exit status; see `bronet.cli.exit_status`.
"""

import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from bronet.__about__ import __version__
from bronet.cli.attack import attack
from bronet.cli.bench import bench
from bronet.cli.certify import certify
from bronet.cli.check import check
from bronet.cli.data import app as data
from bronet.cli.exit_status import Commands, leave
from bronet.cli.export import export
from bronet.cli.info import info
from bronet.cli.own_layers import run_layer_files
from bronet.cli.publish import publish, round_weights
from bronet.cli.quickstart import quickstart
from bronet.cli.recipes import app as recipes
from bronet.cli.report import report
from bronet.cli.serve import serve
from bronet.cli.train import train
from bronet.cli.verify import verify

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
    layers: Annotated[
        list[Path] | None,
        typer.Option(
            "--layers",
            metavar="FILE",
            help="Run a Python file of your own that registers layers, before the command; may be repeated.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Neural networks whose robustness is proved.

    Train a network, prove for every image a radius within which its class cannot change, and report it.

    Start here:  bronet quickstart
    """
    run_layer_files(layers or [])


# The order of the help page: the order in which a newcomer needs them.
for command in (quickstart, train, certify, report, verify, attack, serve, export):
    app.command()(command)
app.add_typer(recipes, name="recipes")
app.add_typer(data, name="data")
app.command()(bench)
app.command()(check)
app.command("round")(round_weights)
app.command()(publish)
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
            leave(end.code)
        raise
