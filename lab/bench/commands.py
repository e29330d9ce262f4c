"""`python -m lab bench`: timings of one layer, of the recipes that the published code was timed with, and of proofs."""

from pathlib import Path
from typing import Annotated

import typer

from bronet.cli.options import DataDirOption, DeviceOption, out_option, usable_device
from lab.bench.rival_commands import equal_budget, layers

app = typer.Typer(no_args_is_help=True)

CPU_RECIPES = ("cifar10/bronet-small",)
Repeats = Annotated[int, typer.Option(min=1, help="Timed repeats; the median is kept.")]
Out = Annotated[Path | None, out_option("A CSV file for the rows.", file=True)]


@app.callback()
def bench() -> None:
    """Time layers, whole training steps, proofs; compare layers.

    Example:  python -m lab bench layer

    Small shapes on a CPU, the paper's on a GPU. Writes nothing unless --out names a file.
    """


@app.command()
def layer(
    *,
    device: DeviceOption = "auto",
    repeats: Repeats = 10,
    out: Out = None,
    channels: Annotated[int | None, typer.Option(min=2, help="Channels in and out.")] = None,
    rank: Annotated[int | None, typer.Option(min=1, help="Rank n of V.")] = None,
    size: Annotated[int | None, typer.Option(min=1, help="Height and width of the images.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Images per batch.")] = None,
) -> None:
    """Time a training step of one BRO layer. The textbook form and a plain convolution stand beside it.

    Example:  python -m lab bench layer --channels 64 --rank 16 --size 32 --batch 32

    The parameter transform is included. Ratios are to the plain convolution of the same dtype.
    """
    from dataclasses import replace

    import torch

    from bronet.cli.console import say, show_facts
    from lab.bench.one_layer import CPU_SHAPE, GPU_SHAPE, bench_layer
    from lab.bench.timing import write_timings

    place = torch.device(usable_device(device))
    shape = GPU_SHAPE if place.type == "cuda" else CPU_SHAPE
    given = {"channels": channels, "rank": rank, "size": size, "batch": batch}
    shape = replace(shape, **{name: value for name, value in given.items() if value is not None})
    say(f"training step of one layer: {shape}")
    rows = list(bench_layer(shape, place, repeats=repeats))
    plain = {row.dtype: row.median_ms for row in rows if row.subject == "plain convolution"}
    facts = [
        (f"{row.subject}, {row.dtype}", f"{row.median_ms:9.2f} ms  {row.median_ms / plain[row.dtype]:6.2f} x plain")
        for row in rows
    ]
    textbook = [row for row in rows if row.subject == "BRO, textbook form"]
    real = [row for row in rows if row.subject == "BRO, real form" and row.dtype == "float32"]
    facts.append(("real form against textbook form", f"{textbook[0].median_ms / real[0].median_ms:.1f} times faster"))
    show_facts(facts)
    if out is not None:
        write_timings(out, rows)


@app.command()
def step(*, device: DeviceOption = "auto", repeats: Repeats = 10, out: Out = None) -> None:
    """Time training steps and inference beside the published code.

    Example:  python -m lab bench step

    Those of the published code are the rows of one H200; `python -m lab bench published` measures them on this machine.
    `bronet bench RECIPE` times any other recipe. Writes nothing unless --out names a file.
    """
    import torch

    from bronet.cli.console import show_facts
    from bronet.recipe import named_recipe
    from lab.bench.published import RECIPES, published_times
    from lab.bench.timing import recipe_rows, write_timings

    place = torch.device(usable_device(device))
    on_gpu = place.type == "cuda"
    rows, facts = [], []
    theirs = published_times()
    for name in RECIPES if on_gpu else CPU_RECIPES:
        for kind, row in recipe_rows(named_recipe(name), place, repeats=repeats):
            rows.append(row)
            text = f"{row.median_ms:9.2f} ms" + (f"  {row.peak_gib:5.2f} GiB" if row.peak_gib else "")
            published = theirs.get((name, kind))
            if on_gpu and published is not None:
                ratio = published / row.median_ms
                text += f"  (published code on one H200: {published:g} ms, {ratio:.1f} times as long)"
            facts.append((f"{row.subject}, {row.shape}", text))
    show_facts(facts)
    if out is not None:
        write_timings(out, rows)


@app.command()
def published(
    checkout: Annotated[Path, typer.Argument(metavar="CHECKOUT", help="A checkout of github.com/ntuaislab/BRONet.")],
    *,
    recipe: Annotated[
        list[str] | None, typer.Option("--recipe", metavar="NAME", help="May be repeated. Default: the table's.")
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Images per batch. Default: the recipe's.")] = None,
    device: DeviceOption = "auto",
    repeats: Repeats = 10,
    out: Out = None,
) -> None:
    """Time training steps and inference of the published code.

    Example:  python -m lab bench published ../BRONet --recipe cifar100/lipconvnet-10-32

    In float32, on a GPU with TF32 products. Runs code of the checkout. Writes nothing unless --out names a file.
    """
    import torch

    from bronet.cli.console import show_facts
    from lab.bench.published import RECIPES, time_published
    from lab.bench.timing import write_timings

    place, names = torch.device(usable_device(device)), tuple(recipe or RECIPES)
    rows = list(time_published(checkout, place, repeats=repeats, recipes=names, batch=batch))
    facts = [(f"{row.subject}, {row.shape}", f"{row.median_ms:9.2f} ms  {row.peak_gib:5.2f} GiB") for row in rows]
    show_facts(facts)
    if out is not None:
        write_timings(out, rows)


@app.command()
def beside(
    checkout: Annotated[Path, typer.Argument(metavar="CHECKOUT", help="A checkout of github.com/ntuaislab/BRONet.")],
    *,
    seconds: Annotated[float, typer.Option(min=0, help="For each piece of work; five turns at least.")] = 5.0,
    device: DeviceOption = "auto",
    out: Out = None,
) -> None:
    """Time our networks and the published ones in turns.

    Example:  python -m lab bench beside ../BRONet

    Evaluation in float32, one image and a batch. Runs code of the checkout. Writes nothing unless --out names a file.
    """
    import torch

    from bronet.cli.bench import show_rows
    from lab.bench.published import compare_with_published

    show_rows(compare_with_published(checkout, torch.device(usable_device(device)), seconds=seconds), out)


@app.command()
def scaling(*, device: DeviceOption = "auto", repeats: Repeats = 5, out: Out = None) -> None:
    """Measure how one layer's time and memory grow. With batch, channels, image size, rank and kernel.

    Example:  python -m lab bench scaling --repeats 3

    Prints the measured growth exponents; --out also draws a plot beside the CSV file.
    """
    import torch

    from bronet.cli.console import show_facts
    from lab.bench.one_layer import CPU_SHAPE, GPU_SHAPE, bench_scaling, exponent
    from lab.bench.timing import write_timings

    place = torch.device(usable_device(device))
    base = GPU_SHAPE if place.type == "cuda" else CPU_SHAPE
    points = list(bench_scaling(base, place, repeats=repeats))
    facts = []
    for axis in dict.fromkeys(axis for axis, _, _ in points):
        chosen = [(value, row.median_ms) for name, value, row in points if name == axis]
        values, times = zip(*chosen, strict=True)
        series = "  ".join(f"{value}: {ms:.2f} ms" for value, ms in chosen)
        facts.append((f"{axis}, exponent {exponent(values, times):.2f}", series))
    show_facts(facts)
    if out is not None:
        from lab.bench.one_layer import draw_scaling

        write_timings(out, [row for _, _, row in points])
        draw_scaling(points, base, place, out.with_suffix(".png"))


@app.command()
def certify(
    *,
    recipe: Annotated[str | None, typer.Option(help="Recipe of the network.", show_default=False)] = None,
    images: Annotated[int, typer.Option(min=1, help="Images to certify.")] = 10_000,
    batch: Annotated[int, typer.Option(min=1, help="Images per batch.")] = 250,
    device: DeviceOption = "auto",
    out: Out = None,
) -> None:
    """Time a network's proof and the certificates of many images.

    Example:  python -m lab bench certify --recipe digits/quickstart --images 1000

    BRONet-M on a GPU, the small network on a CPU. Writes nothing unless --out names a file.
    """
    import torch

    from bronet.cli.console import show_facts
    from lab.bench.recipe_times import bench_certify
    from lab.bench.timing import write_timings

    place = torch.device(usable_device(device))
    chosen = recipe or ("cifar10/bronet-m" if place.type == "cuda" else "cifar10/bronet-small")
    result = bench_certify(chosen, place, images=images, batch=batch)
    facts = [
        ("network", chosen),
        ("device", result.row.device),
        ("proof of the network", f"{result.prove_seconds:.2f} s"),
        (f"{images:,} images", f"{result.certify_seconds:.2f} s"),
    ]
    show_facts(facts)
    if out is not None:
        write_timings(out, [result.row])


@app.command()
def lipnext(
    *,
    data: Annotated[str, typer.Option("--data", help="digits or cifar10.")] = "digits",
    seconds: Annotated[float, typer.Option("--seconds", help="Processor time for each training.")] = 20.0,
    seeds: Annotated[list[int] | None, typer.Option("--seed", metavar="N", help="May be repeated. Default: 0.")] = None,
    data_dir: DataDirOption = None,
    out: Out = None,
) -> None:
    """Train LipNeXt, its variant and BRONet equally long.

    Example:  python -m lab bench lipnext --data digits --seconds 20 --seed 0 --seed 1 --seed 2

    On one thread of a CPU, judged on held-out training images. Writes nothing unless --out names a file.
    """
    import torch

    from bronet.cli.console import say
    from bronet.files import replace_text
    from lab.bench import csv_text
    from lab.bench.lipnext import contest_rows

    torch.set_num_threads(1)
    rows = []
    for row in contest_rows(data, seconds=seconds, seeds=seeds or [0], data_dir=data_dir):
        rows.append(row)
        shares = " / ".join(f"{100 * share:.1f}" for share in row.shares)
        say(f"{row.network:16s} seed {row.seed}: {shares}, {row.steps} steps in {row.cpu_seconds:.1f} s")
        if out is not None:
            replace_text(out, csv_text(rows))  # as they come: a later failure loses none


for command in (layers, equal_budget):
    app.command()(command)
