"""`bronet quickstart`: train, certify and report a small network, with nothing to download."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from bronet.cli.certify import certify_folder
from bronet.cli.options import Device, typed_command
from bronet.cli.train import train_recipe
from bronet.errors import BronetError

RECIPE_NAME = "digits/quickstart"
THREADS = 1
"""Matrices this small gain little from a second thread, and wait long for it where other programs are running."""


def quickstart(
    out: Annotated[Path, typer.Option("--out", help="Run folder; an earlier quick start in it is replaced.")] = Path(
        "runs/quickstart"
    ),
    seed: Annotated[int, typer.Option("--seed", help="Seed of weights, order and augmentation.")] = 0,
) -> None:
    """Train, certify and report a small network in two minutes.

    Example:  bronet quickstart

    Uses the handwritten digits in this package; needs no other data and no GPU. Writes a run folder with the
    recipe, the weights, one row per test image, and a report with the curve of certified accuracy.
    """
    import torch

    from bronet.cli.console import open_console, say, show_results
    from bronet.recipe import named_recipe, override
    from bronet.report import write_summary
    from bronet.report.evidence import read_evidence
    from bronet.report.table import summarize

    _refuse_other_runs(out)
    torch.set_num_threads(THREADS)
    console, command = open_console(), typed_command()
    recipe = override(named_recipe(RECIPE_NAME), [f"train.seed={seed}"])
    say(console, f"training the recipe {RECIPE_NAME} for {recipe.train.epochs} epochs on the embedded digits")
    run = train_recipe(recipe, out, device=Device.CPU, overwrite=True, command=command)
    certify_folder(run, console, device=Device.CPU, command=command)
    summary = summarize(read_evidence(run))
    paths = write_summary(summary, run.report)
    show_results(console, [summary])
    say(console, "No change of the pixels shorter than the radius (l2 norm) changes the class.")
    say(console, f"report:  {paths.page}")
    say(console, f"rows:    {run.certificate().rows}")
    say(console, f"next:    bronet certify {shlex.quote(str(out))} --eps 0.3   or   bronet recipes")


def _refuse_other_runs(folder: Path) -> None:
    """Only a quick start may be replaced without asking."""
    from bronet.run.folder import RunFolder

    run = RunFolder(folder)
    if run.recipe_file.exists() and run.recipe.name != RECIPE_NAME:
        raise BronetError(f"--out must not hold another run, got {folder} with {run.recipe.name}; choose another")
