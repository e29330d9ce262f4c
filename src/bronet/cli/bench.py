"""`bronet bench`: how fast it is here."""

from pathlib import Path
from typing import Annotated

import typer

from bronet.cli.bench_rivals import equal_budget, layers
from bronet.cli.options import Device, DeviceOption, SettingsOption, device_name
from bronet.errors import BronetError

app = typer.Typer(no_args_is_help=True)

Repeats = Annotated[int, typer.Option(min=1, help="Timed repeats; the median is kept.")]
Out = Annotated[Path | None, typer.Option(help="A CSV file for the rows.")]


@app.callback()
def bench() -> None:
    """Time layers, whole training steps, proofs; compare layers.

    Example:  bronet bench layer

    Small shapes on a CPU, the paper's on a GPU. Writes nothing unless --out names a file.
    """


@app.command()
def layer(
    *,
    device: DeviceOption = Device.AUTO,
    repeats: Repeats = 10,
    out: Out = None,
    channels: Annotated[int | None, typer.Option(min=2, help="Channels in and out.")] = None,
    rank: Annotated[int | None, typer.Option(min=1, help="Rank n of V.")] = None,
    size: Annotated[int | None, typer.Option(min=1, help="Height and width of the images.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Images per batch.")] = None,
) -> None:
    """Time a training step of one BRO layer. The textbook form and a plain convolution stand beside it.

    Example:  bronet bench layer --channels 64 --rank 16 --size 32 --batch 32

    The parameter transform is included. Ratios are to the plain convolution of the same dtype.
    """
    from dataclasses import replace

    import torch

    from bronet.bench.layer import CPU_SHAPE, GPU_SHAPE, bench_layer
    from bronet.bench.timing import write_timings
    from bronet.cli.console import facts_table, open_console

    place = torch.device(device_name(device))
    shape = GPU_SHAPE if place.type == "cuda" else CPU_SHAPE
    given = {"channels": channels, "rank": rank, "size": size, "batch": batch}
    shape = replace(shape, **{name: value for name, value in given.items() if value is not None})
    console = open_console()
    console.print(f"training step of one layer: {shape}", highlight=False)
    rows = list(bench_layer(shape, place, repeats=repeats))
    plain = {row.dtype: row.median_ms for row in rows if row.subject == "plain convolution"}
    facts = [
        (f"{row.subject}, {row.dtype}", f"{row.median_ms:9.2f} ms  {row.median_ms / plain[row.dtype]:6.2f} x plain")
        for row in rows
    ]
    textbook = [row for row in rows if row.subject == "BRO, textbook form"]
    real = [row for row in rows if row.subject == "BRO, real form" and row.dtype == "float32"]
    facts.append(("real form against textbook form", f"{textbook[0].median_ms / real[0].median_ms:.1f} times faster"))
    console.print(facts_table(facts))
    if out is not None:
        write_timings(out, rows)


@app.command()
def step(
    *,
    device: DeviceOption = Device.AUTO,
    repeats: Repeats = 10,
    out: Out = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",  # typer 0.27 would make --RECIPE of the metavar
            metavar="RECIPE",
            help="A name of `bronet recipes`, or a YAML file. Default: some of the paper's, on a CPU a small one.",
            show_default=False,
        ),
    ] = None,
    settings: SettingsOption = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Images per batch; default: the recipe's.")] = None,
) -> None:
    """Time training steps and inference of recipes.

    Example:  bronet bench step --recipe digits/quickstart --batch 32

    Products are in bf16 on a GPU, in float32 on a CPU, unless set otherwise. On a GPU the published code's time on one
    H200 stands beside each row that has one, unless --batch or --set is given. Writes nothing unless --out names a
    file.
    """
    import torch

    from bronet.bench.step import CPU_SUBJECTS, GPU_SUBJECTS, bench_step, subjects_of
    from bronet.bench.timing import write_timings
    from bronet.cli.console import facts_table, open_console

    if settings and recipe is None:
        raise BronetError(f"--set changes a recipe, so it needs --recipe, got --set {settings[0]} alone")
    place = torch.device(device_name(device))
    known = GPU_SUBJECTS if place.type == "cuda" else CPU_SUBJECTS
    subjects = known if recipe is None else subjects_of(recipe, known, settings or ())
    rows, facts = [], []
    for subject, row in bench_step(subjects, place, repeats=repeats, batch=batch):
        rows.append(row)
        text = f"{row.median_ms:9.2f} ms"
        if row.peak_gib:
            text += f"  {row.peak_gib:5.2f} GiB"
        if subject.published_ms is not None and batch is None:
            ratio = subject.published_ms / row.median_ms
            text += f"  (published code on one H200: {subject.published_ms:g} ms, {ratio:.1f} times as long)"
        facts.append((f"{row.subject}, {row.shape}", text))
    open_console().print(facts_table(facts))
    if out is not None:
        write_timings(out, rows)


@app.command()
def scaling(*, device: DeviceOption = Device.AUTO, repeats: Repeats = 5, out: Out = None) -> None:
    """Measure how one layer's time and memory grow. With batch, channels, image size and rank.

    Example:  bronet bench scaling --repeats 3

    Prints the measured growth exponents; --out also draws a plot beside the CSV file.
    """
    import torch

    from bronet.bench.layer import CPU_SHAPE, GPU_SHAPE
    from bronet.bench.scaling import bench_scaling, exponent
    from bronet.bench.timing import write_timings
    from bronet.cli.console import facts_table, open_console

    place = torch.device(device_name(device))
    base = GPU_SHAPE if place.type == "cuda" else CPU_SHAPE
    points = list(bench_scaling(base, place, repeats=repeats))
    facts = []
    for axis in dict.fromkeys(axis for axis, _, _ in points):
        chosen = [(value, row.median_ms) for name, value, row in points if name == axis]
        values, times = zip(*chosen, strict=True)
        series = "  ".join(f"{value}: {ms:.2f} ms" for value, ms in chosen)
        facts.append((f"{axis}, exponent {exponent(values, times):.2f}", series))
    open_console().print(facts_table(facts))
    if out is not None:
        from bronet.bench.plot import draw_scaling

        write_timings(out, [row for _, _, row in points])
        draw_scaling(points, base, place, out.with_suffix(".png"))


@app.command()
def certify(
    *,
    recipe: Annotated[str | None, typer.Option(help="Recipe of the network.", show_default=False)] = None,
    images: Annotated[int, typer.Option(min=1, help="Images to certify.")] = 10_000,
    batch: Annotated[int, typer.Option(min=1, help="Images per batch.")] = 250,
    device: DeviceOption = Device.AUTO,
    out: Out = None,
) -> None:
    """Time a network's proof and the certificates of many images.

    Example:  bronet bench certify --recipe digits/quickstart --images 1000

    BRONet-M on a GPU, the small network on a CPU. Writes nothing unless --out names a file.
    """
    import torch

    from bronet.bench.certify import bench_certify
    from bronet.bench.timing import write_timings
    from bronet.cli.console import facts_table, open_console

    place = torch.device(device_name(device))
    chosen = recipe or ("cifar10/bronet-m" if place.type == "cuda" else "cifar10/bronet-small")
    result = bench_certify(chosen, place, images=images, batch=batch)
    facts = [
        ("network", chosen),
        ("device", result.row.device),
        ("proof of the network", f"{result.prove_seconds:.2f} s"),
        (f"{images:,} images", f"{result.certify_seconds:.2f} s"),
    ]
    open_console().print(facts_table(facts))
    if out is not None:
        write_timings(out, [result.row])


for command in (layers, equal_budget):
    app.command()(command)
