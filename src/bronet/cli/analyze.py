"""`bronet analyze`: experiments on single layers."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True)


@app.callback()
def analyze() -> None:
    """Look at one construction closely.

    Example:  bronet analyze lot-condition
    """


@app.command("lot-condition")
def lot_condition(
    *,
    out: Annotated[Path, typer.Option("--out", help="Folder to write to.")] = Path("analysis/lot-condition"),
    channels: Annotated[int, typer.Option("--channels", help="Channels of the layer.")] = 32,
    steps: Annotated[int, typer.Option("--steps", help="Newton steps.")] = 50,
    training_steps: Annotated[int, typer.Option("--training-steps", help="Steps of training on the digits.")] = 120,
    seed: Annotated[int, typer.Option("--seed", help="Seed of parameters and batches.")] = 0,
) -> None:
    """Follow the condition numbers of LOT's Newton iteration (Figure 13).

    Example:  bronet analyze lot-condition --channels 16

    Writes lot-condition.csv, .png and .pdf into --out. Takes about a minute on two CPU cores.
    """
    from rich.table import Table

    from bronet.analyze import lot_condition as experiment
    from bronet.atomic import replace_bytes
    from bronet.cli.console import open_console, say
    from bronet.report.curve import figure_bytes

    setting = experiment.LOTConditionSetting(channels=channels, steps=steps, training_steps=training_steps, seed=seed)
    rows = experiment.measure(setting)
    figure = experiment.draw(rows)
    contents = {
        out / "lot-condition.csv": experiment.csv_text(rows).encode(),
        out / "lot-condition.png": figure_bytes(figure, "png"),
        out / "lot-condition.pdf": figure_bytes(figure, "pdf"),
    }
    for path, content in contents.items():
        replace_bytes(path, content)
    console = open_console()
    table = Table("layer", "parameters", "Newton steps", "median condition", "worst condition", "norm")
    for line in experiment.summary(rows):
        numbers = (f"{value:.6g}" for value in (line.median_condition, line.worst_condition))
        table.add_row(line.layer, line.parameters, str(line.step or "-"), *numbers, f"{line.norm:.9f}")
    console.print(table)
    for path in contents:
        say(console, f"wrote    {path}")
