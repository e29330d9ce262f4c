"""`python -m lab analyze`: the paper's figures about losses, capacity and single layers, drawn anew."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bronet.cli.options import SplitOption, chosen_split, out_option, usable_device
from lab.tables.published import RESULTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

app = typer.Typer(no_args_is_help=True)

DIGITS = Path("bronet-digits/digits")
OutOption = Annotated[Path, out_option("Folder to write to.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of whatever is drawn at random.")]
ResultsOption = Annotated[Path, typer.Option("--results", help="Folder of published runs.")]
OUT = Path("analysis")


@app.callback()
def analyze() -> None:
    """Draw the figures that explain. Losses, the landscape of CR, the teaser, Theorem 1, LOT.

    Example:  python -m lab analyze all

    Every experiment writes NAME.csv, NAME.png and NAME.pdf into --out.
    """


@app.command("losses")
def losses(*, out: OutOption = OUT) -> None:
    """Draw CE, CE + CR and LA, and their derivatives (Figure 10). Over the probability of the true class.

    Example:  python -m lab analyze losses

    Writes losses.csv, .png and .pdf into --out.
    """
    from lab.analyze import loss_curves

    rows = loss_curves.measure()
    _write(out, "losses", rows[0]._fields, rows, loss_curves.draw(rows))


@app.command("cr-landscape")
def cr_landscape(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run, or a pretrained network.")] = DIGITS,
    *,
    out: OutOption = OUT,
    extent: Annotated[float, typer.Option("--extent", help="Largest step along a direction.")] = 0.02,
    points: Annotated[int, typer.Option("--points", help="Points along each direction, odd.")] = 31,
    images: Annotated[int, typer.Option("--images", min=1, help="How many images.")] = 1,
    seed: SeedOption = 0,
    split: SplitOption = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Folder of the data sets.", show_default=False)
    ] = None,
) -> None:
    """Draw the CR term around trained weights (Figure 11).

    Example:  python -m lab analyze cr-landscape bronet-digits/digits --points 21

    Directions: the sign of its gradient, and a random sign for every weight. Writes cr-landscape.csv, .png and .pdf
    into --out.
    """
    from bronet.cli.console import counting
    from bronet.data import load_images
    from bronet.pretrained import find_network, load_pretrained
    from lab.analyze import cr_landscape as experiment

    setting = experiment.LandscapeSetting(extent=extent, points=points, images=images, seed=seed)
    data = find_network(run).recipe.data
    chosen = load_images(data, chosen_split(split, data, data_dir=data_dir), data_dir=data_dir)
    place = usable_device("auto")
    with counting("evaluating", things="points") as show:
        rows = experiment.measure(
            load_pretrained(run, device=place), chosen.to(place), setting, lambda done: show(done, points * points)
        )
    _write(out, "cr-landscape", rows[0]._fields, rows, experiment.draw(rows))


@app.command("teaser")
def teaser(*, out: OutOption = OUT, results: ResultsOption = RESULTS) -> None:
    """Draw clean against certified accuracy (Figure 1). On CIFAR-10, the paper's networks and ours.

    Example:  python -m lab analyze teaser

    Ours are the published runs in --results. Writes teaser.csv, .png and .pdf into --out.
    """
    from lab.analyze import run_figures as experiment
    from lab.tables.published import published_runs

    rows = experiment.measure(published_runs(results))
    _write(out, "teaser", rows[0]._fields, rows, experiment.draw(rows))


@app.command("theorem1")
def theorem1(
    *,
    out: OutOption = OUT,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Training steps per network.")] = 150,
    tau: Annotated[float, typer.Option("--tau", help="Margin of the ramp loss.")] = 1.0,
    constants: Annotated[
        list[float] | None,
        typer.Option(
            "--lipschitz", metavar="L", help="Constant; may be repeated. Default: 16 down to 1/256.", show_default=False
        ),
    ] = None,
    noise: Annotated[
        list[float] | None,
        typer.Option(
            "--noise",
            metavar="SHARE",
            help="Share of random labels; may be repeated. Default: 0 and 0.5.",
            show_default=False,
        ),
    ] = None,
    seed: SeedOption = 0,
) -> None:
    """Set the margin risk against its bound (Theorem 1). As the Lipschitz constant shrinks.

    Example:  python -m lab analyze theorem1 --steps 50

    Trains small networks on the digits, a minute or two. Writes theorem1.csv, .png and .pdf into --out.
    """
    from bronet.cli.console import counting
    from lab.analyze import theorem1 as experiment

    shares = tuple(noise) if noise else (0.0, 0.5)
    lipschitz = tuple(constants) if constants else experiment.LIPSCHITZ
    setting = experiment.TheoremSetting(tau=tau, lipschitz=lipschitz, noise=shares, steps=steps, seed=seed)
    with counting("training", things="networks") as show:
        networks = len(shares) * len(setting.lipschitz)
        rows = experiment.measure(setting, lambda done: show(done, networks))
    _write(out, "theorem1", rows[0]._fields, rows, experiment.draw(rows))


@app.command("lot-condition")
def lot_condition(
    *,
    out: OutOption = OUT,
    channels: Annotated[int, typer.Option("--channels", help="Channels of the layer.")] = 32,
    steps: Annotated[int, typer.Option("--steps", help="Newton steps.")] = 50,
    training_steps: Annotated[int, typer.Option("--training-steps", help="Steps of training on the digits.")] = 120,
    seed: SeedOption = 0,
) -> None:
    """Follow LOT's condition numbers by Newton step (Figure 13).

    Example:  python -m lab analyze lot-condition --channels 16

    Writes lot-condition.csv, .png and .pdf into --out. Takes about a minute on two CPU cores.
    """
    from rich.table import Table

    from bronet.cli.console import open_console
    from lab.analyze import lot_condition as experiment

    setting = experiment.LOTConditionSetting(channels=channels, steps=steps, training_steps=training_steps, seed=seed)
    rows = experiment.measure(setting)
    table = Table("layer", "parameters", "Newton steps", "median condition", "worst condition", "norm")
    for line in experiment.summary(rows):
        numbers = (f"{value:.6g}" for value in (line.median_condition, line.worst_condition))
        table.add_row(line.layer, line.parameters, str(line.step or "-"), *numbers, f"{line.norm:.9f}")
    open_console().print(table)
    _write(out, "lot-condition", rows[0]._fields, rows, experiment.draw(rows))


@app.command("converted")
def converted(
    *,
    out: OutOption = OUT,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many seeds, from 0.")] = 3,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Of each training.")] = 20,
) -> None:
    """Certify a converted ResNet and a BRONet of its size.

    Example:  python -m lab analyze converted

    The digits held out of the training split judge them. Writes converted.csv into --out, and prints the table of
    docs/convert.md. Takes some minutes on two CPU cores.
    """
    from bronet.files import replace_bytes
    from lab.analyze import converted as experiment
    from lab.analyze import tuples_as_csv

    rows = experiment.measure(seeds=range(seeds), epochs=epochs)
    replace_bytes(out / "converted.csv", tuples_as_csv(experiment.Row._fields, rows).encode())
    typer.echo(experiment.table(rows))


@app.command("all")
def everything(*, out: OutOption = OUT, results: ResultsOption = RESULTS) -> None:
    """Draw all of them, with their defaults.

    Example:  python -m lab analyze all --out analysis

    Writes the .csv, .png and .pdf of every experiment into --out. Takes some minutes on two CPU cores.
    """
    losses(out=out)
    teaser(out=out, results=results)
    cr_landscape(DIGITS, out=out)
    theorem1(out=out)
    lot_condition(out=out)


def _write(
    out: Path, stem: str, names: tuple[str, ...], rows: "Sequence[tuple[object, ...]]", figure: "Figure"
) -> None:
    """Write rows and pictures, each file whole."""
    from bronet.files import replace_bytes
    from bronet.report.figures import figure_bytes
    from lab.analyze import tuples_as_csv

    contents = {
        out / f"{stem}.csv": tuples_as_csv(names, rows).encode(),
        out / f"{stem}.png": figure_bytes(figure, "png"),
        out / f"{stem}.pdf": figure_bytes(figure, "pdf"),
    }
    for path, content in contents.items():
        replace_bytes(path, content)
        typer.echo(f"wrote    {path}")
