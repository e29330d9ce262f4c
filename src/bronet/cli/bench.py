"""`bronet bench`: how fast this library and a recipe's network are on this machine."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bronet.cli import options

if TYPE_CHECKING:
    from bronet.bench.comparison import ComparedRow


def bench(
    recipe: Annotated[
        str | None,
        options.recipe_named("A name of `bronet recipes`, or a YAML file. Default: layers and networks beside others."),
    ] = None,
    *,
    settings: options.SettingsOption = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed repeats of a RECIPE; the median is printed.")] = 10,
    seconds: Annotated[float, typer.Option(min=0, help="For each line of the table; five turns at least.")] = 5.0,
    only: Annotated[str, typer.Option(metavar="TEXT", help="Only the lines of the table whose work holds this.")] = "",
    out: Annotated[Path | None, options.out_option("A CSV file for the rows of the table.", file=True)] = None,
    device: options.DeviceOption = "auto",
) -> None:
    """Time this library beside plain torch, or one network.

    Example:  bronet bench --only "LipConvNet-5-32, evaluation"

    Without a RECIPE: layers, networks and certificates in float32, beside plain torch and the libraries of the extra
    `peers` where they are installed, in turns; a ratio above 1 says how many times as long the other takes. With one:
    its training step and inference, in bf16 on a GPU and float32 on a CPU unless a setting says otherwise. Images are
    random, weights those of initialisation. Writes nothing without --out.
    """
    if recipe is None:
        import torch

        from bronet.bench.comparison import compare

        show_rows(compare(torch.device(options.usable_device(device)), seconds=seconds, only=only), out)
        return
    import statistics

    import torch

    from bronet.bench.timing import hardware_name, time_inference, time_training, usual_precision
    from bronet.cli.console import show_facts
    from bronet.recipe import find_recipe, override

    place = torch.device(options.usable_device(device))
    chosen = find_recipe(recipe)
    chosen = override(chosen, [usual_precision(place), *(settings or ())])
    sides = " x ".join(map(str, chosen.data.spec().shape))
    facts = [
        ("device", hardware_name(place)),
        ("recipe", f"{chosen.name}, {sides}, batch {chosen.train.batch_size}, {chosen.train.precision}"),
    ]
    for what, take in (("training step", time_training), ("inference", time_inference)):
        timing = take(chosen, place, repeats=repeats)
        memory = f"  {timing.peak_gib:5.2f} GiB" if timing.peak_gib else ""
        facts.append((what, f"{statistics.median(timing.times):.2f} ms{memory}"))
    show_facts(facts)


def show_rows(rows: "Iterable[ComparedRow]", out: Path | None) -> None:
    """Print rows as they come, a line for each contender, and write them to a file if one is named."""
    from bronet.bench.comparison import ComparedRow
    from bronet.cli.console import say
    from bronet.records import write_rows

    shown = list[ComparedRow]()
    for row in rows:
        if not shown:
            say(f"{row.device}, torch {row.torch}; milliseconds, of the clock and of the processor")
        if not shown or shown[-1].work != row.work:
            say(row.work)
        ratio = f"{row.ratio:6.2f} of ours, quartiles {row.spread:.0%} apart" if row.ratio != 1 or row.spread else ""
        say(f"    {row.contender:18s}{row.ms:10.2f}{row.processor_ms:10.2f}  {ratio}")
        shown.append(row)
    if out is not None:
        write_rows(ComparedRow, out, shown)
