"""`bronet bench`: how fast a recipe's network is on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from bronet.cli.options import Device, DeviceOption, SettingsOption, checked_file, device_name

GPU_RECIPE, CPU_RECIPE = "cifar10/bronet-m", "cifar10/bronet-small"


def bench(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            help="A name of `bronet recipes`, or a YAML file. Default: BRONet-M on a GPU, a small network on a CPU.",
            show_default=False,
        ),
    ] = None,
    *,
    settings: SettingsOption = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Images per batch; default: the recipe's.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed repeats; the median is kept.")] = 10,
    device: DeviceOption = Device.AUTO,
    out: Annotated[Path | None, typer.Option(help="A CSV file for the rows.", callback=checked_file)] = None,
) -> None:
    """Time a training step and inference of a recipe's network.

    Example:  bronet bench digits/quickstart --batch 32

    Images are random, weights those of initialisation. Products are in bf16 on a GPU and in float32 on a CPU, unless a
    setting says otherwise. Writes nothing unless --out names a file.
    """
    import torch

    from bronet.bench import time_recipe, write_timings
    from bronet.cli.console import facts_table, open_console
    from bronet.recipe import find_recipe

    place = torch.device(device_name(device))
    chosen = find_recipe(recipe or (GPU_RECIPE if place.type == "cuda" else CPU_RECIPE))
    changed = [*(settings or ()), *([f"train.batch_size={batch}"] if batch is not None else ())]
    rows = [row for _, row in time_recipe(chosen, place, repeats=repeats, settings=changed)]
    facts = [("device", rows[0].device)]
    for row in rows:
        memory = f"  {row.peak_gib:5.2f} GiB" if row.peak_gib else ""
        facts.append((f"{row.subject}, {row.shape}", f"{row.median_ms:9.2f} ms{memory}"))
    open_console().print(facts_table(facts))
    if out is not None:
        write_timings(out, rows)
