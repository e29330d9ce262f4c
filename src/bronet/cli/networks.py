"""`bronet export`: a trained network as one file for others."""

from pathlib import Path
from typing import Annotated

import typer

from bronet.cli.options import RunArgument, opened_runs, out_option
from bronet.wording import Format


def export(
    run: RunArgument,
    *,
    format: Annotated[Format, typer.Option("--format", help="The kind of file.")] = Format.ONNX,
    out: Annotated[
        Path | None, out_option("The file. Default: model.onnx or model.pt2 in the run's folder.", file=True)
    ] = None,
) -> None:
    """Write the network as one file that runs without bronet.

    Example:  bronet export runs/quickstart --format onnx

    Writes that file. It computes in float32, takes any number of images with pixels in [0, 1], and holds the proved
    constants, from which docs/export.md computes a radius in five lines. It is run, and compared with the network,
    before it takes its name. ONNX needs: pip install 'bronet[onnx]'.
    """
    from bronet.cli.console import facts_table, open_console, say
    from bronet.export import export_run
    from bronet.wording import bound_text

    with opened_runs(run) as (folder,):
        done = export_run(folder, format=format, out=out)
    size = done.path.stat().st_size / 2**20
    images = f"over {done.images} random images"
    facts = [
        ("file", f"{done.path}, {size:.1f} MiB"),
        ("largest difference", f"{done.from_float32:.2g} from the float32 network, {images}"),
        ("", f"{done.from_float64:.2g} from the float64 network of the certificate"),
        ("Lipschitz bound, before the head", bound_text(done.facts.lipschitz)),
        ("classes", f"{len(done.facts.classes)}: {', '.join(done.facts.classes[:10])}"),
    ]
    console = open_console()
    console.print(facts_table(facts))
    say(console, "A radius from its logits is nominal, not proved: see docs/export.md.")
