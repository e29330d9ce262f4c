"""`python -m lab bench layers` and `equal-budget`: every layer in one frame."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bronet.cli.options import DataDirOption, DeviceOption, out_option, usable_device
from bronet.errors import BronetError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LayersOption = Annotated[
    list[str] | None, typer.Option("--layer", metavar="WORD", help="A layer to measure; may be repeated. Default: all.")
]


def layers(
    *,
    out: Annotated[Path, out_option("Folder to write to.")] = Path("bench/layers"),
    paper: Annotated[bool, typer.Option("--paper", help="The paper's shapes: batch 512, widths 32 to 64.")] = False,
    layer: LayersOption = None,
    size: Annotated[
        list[int] | None, typer.Option("--size", metavar="N", help="An input size, a multiple of 32.")
    ] = None,
    width: Annotated[list[int] | None, typer.Option("--width", metavar="N", help="An initial width.")] = None,
    kernel: Annotated[list[int] | None, typer.Option("--kernel", metavar="N", help="A kernel size.")] = None,
    batch: Annotated[int | None, typer.Option("--batch", help="Images per batch.")] = None,
    repeats: Annotated[int | None, typer.Option("--repeats", help="Timed runs; the median counts.")] = None,
    rows_from: Annotated[
        list[Path] | None,
        typer.Option("--rows", metavar="FILE", help="Measure nothing: draw the rows of this layers.csv; repeatable."),
    ] = None,
    device: DeviceOption = "auto",
) -> None:
    """Time every layer in LipConvNet. Over size, width and kernel: Figures 2, 5, 6 and Table 8.

    Example:  python -m lab bench layers --layer bro --layer soc

    Writes layers.csv, layers.json and three figures into --out, and prints the measured growth beside Table 8's.
    """
    from dataclasses import replace

    from rich.table import Table

    from bronet.cli.console import open_console, say
    from bronet.files import replace_text
    from bronet.records import read_rows
    from lab.bench import csv_text, json_text, layer_figures
    from lab.bench import layers as sweeps

    sweep = sweeps.PAPER if paper else sweeps.Sweep()
    sweep = replace(
        sweep,
        kinds=tuple(layer) if layer else sweep.kinds,
        sizes=tuple(size) if size else sweep.sizes,
        widths=tuple(width) if width else sweep.widths,
        kernels=tuple(kernel) if kernel else sweep.kernels,
        batch=sweep.batch if batch is None else batch,
        repeats=sweep.repeats if repeats is None else repeats,
    )
    advice = "give a layers.csv of this command"
    rows = [row for path in rows_from or () for row in read_rows(sweeps.LayerRow, path, advice=advice)]
    for row in sweeps.measure(sweep, device=usable_device(device)) if not rows_from else ():
        rows.append(row)
        replace_text(out / "layers.csv", csv_text(rows))  # as they come: a later failure loses none
        seconds = row.memory_kind if row.train_seconds is None else f"{1000 * row.train_seconds:.1f} ms"
        say(f"{row.layer:9s} s={row.size} width={row.width} k={row.kernel}  training step {seconds}")
    if not rows:
        raise BronetError("rows must hold at least one measurement, got none")
    figures = {
        "figure-2": layer_figures.figure_2(rows),
        "figure-5": layer_figures.figure_5(rows),
        "figure-6": layer_figures.figure_6(rows),
    }
    texts = {"layers.csv": csv_text(rows), "layers.json": json_text(rows, facts=_facts())}
    written = _write(out, texts, figures)
    table = Table("layer", "step", "time grows", "MACs grow", "memory grows", "Table 8 memory grows")
    for line in layer_figures.growth(rows):
        table.add_row(*line)
    open_console().print(table)
    for path in written:
        say(f"wrote    {path}")


def equal_budget(
    *,
    out: Annotated[Path, out_option("Folder to write to.")] = Path("bench/equal-budget"),
    dataset: Annotated[str, typer.Option("--dataset", help="cifar10, cifar100 or digits.")] = "cifar10",
    seconds: Annotated[float, typer.Option("--seconds", help="Seconds of training for every layer.")] = 60.0,
    steps: Annotated[int | None, typer.Option("--steps", help="Steps instead of seconds.")] = None,
    images: Annotated[int, typer.Option("--images", help="Test images to certify.")] = 1000,
    layer: LayersOption = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of weights, order and augmentation.")] = 0,
    data_dir: DataDirOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Train a network with every layer for the same time. Then certify them.

    Example:  python -m lab bench equal-budget --dataset digits --seconds 20

    Writes equal-budget.csv, .json, .md and .png into --out. On one H200, 13 layers at 30 seconds fit into ten minutes.
    """
    from rich.table import Table

    from bronet.cli.console import open_console, say
    from bronet.files import replace_text
    from lab.bench import csv_text, json_text
    from lab.bench import equal_budget as comparison
    from lab.bench.timed_training import Budget

    budget = Budget(seconds=seconds) if steps is None else Budget(steps=steps)
    kinds = tuple(layer) if layer else comparison.ALL_KINDS
    setting = comparison.Comparison(dataset=dataset, kinds=kinds, budget=budget, images=images, seed=seed)
    rows, failed = [], {}
    for row in comparison.compare(setting, device=usable_device(device), data_dir=str(data_dir) if data_dir else None):
        if isinstance(row, comparison.Failure):
            failed[row.layer] = row.reason
            say(f"{row.layer:9s} failed: {row.reason}")
            continue
        rows.append(row)
        replace_text(out / "equal-budget.csv", csv_text(rows))  # as they come: a later failure loses none
        say(f"{row.layer:9s} {row.steps} steps in {row.train_seconds:.1f} s, clean {100 * row.clean:.1f} %")
    if not rows:
        raise BronetError(f"layers must train to be compared, but all failed: {'; '.join(failed.values())}")
    texts = {
        "equal-budget.csv": csv_text(rows),
        "equal-budget.json": json_text(rows, facts=_facts() | {"failed": failed}),
        "equal-budget.md": comparison.markdown(rows),
    }
    written = _write(out, texts, {"equal-budget": comparison.draw(rows)})
    table = Table(*comparison.header(rows))
    for line in comparison.table(rows):
        table.add_row(*line)
    open_console().print(table)
    for path in written:
        say(f"wrote    {path}")


def _facts() -> dict[str, object]:
    """Return how the rows came about: command, commit, versions."""
    import torch

    from bronet.__about__ import __version__
    from bronet.cli.options import typed_command
    from bronet.training.run import source_commit

    versions = {"bronet": __version__, "torch": torch.__version__}
    return {"command": typed_command(), "commit": source_commit(), "versions": versions}


def _write(folder: Path, texts: dict[str, str], figures: "dict[str, Figure]") -> list[Path]:
    """Write text files, and each figure as PNG, and return the paths."""
    from bronet.files import replace_bytes
    from bronet.report.figures import figure_bytes

    contents = {folder / name: text.encode() for name, text in texts.items()}
    contents |= {folder / f"{name}.png": figure_bytes(figure, "png") for name, figure in figures.items()}
    for path, content in contents.items():
        replace_bytes(path, content)
    return list(contents)
