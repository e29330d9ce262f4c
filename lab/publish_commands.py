"""`python -m lab round`, `publish` and `pack`: from a certified run to evidence and a network for others."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from bronet.cli.options import out_option


def round_weights(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.", show_default=False)],
    *,
    out: Annotated[Path, out_option("Run folder for the rounded weights.")],
) -> None:
    """Round the weights of a run to bf16, in a new run folder.

    Example:  python -m lab round runs/quickstart --out runs/quickstart-bf16

    Writes into --out: model.safetensors (kernels and matrices in bf16) and copies of recipe, log and record. What was
    proved of RUN is not copied: certify the new folder.
    """
    from lab.publish import round_run

    result = round_run(run, out)
    typer.echo(f"rounded: {result.weights}\nnext:    {shlex.join(['bronet', 'certify', str(result.path)])}")


def publish(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.", show_default=False)],
    *,
    results: Annotated[Path, typer.Option("--results", help="Folder for the evidence.", show_default=False)],
    pretrained: Annotated[
        str | None,
        typer.Option(
            "--pretrained", metavar="MODEL/DATA", help="Also keep the network under this name.", show_default=False
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what --results holds.")] = False,
) -> None:
    """Publish a certified run. Its evidence as text, its network as a pretrained folder.

    Example:  python -m lab publish runs/mine --results lab/results/mine --pretrained mine/digits

    Writes into --results: recipe, record, log, certificates with their rows, and attacks, without machine paths.
    With --pretrained also config.json, model.safetensors and a model card: inside the package bronet, or above 8 MB in
    the folder weights, with a line in the manifest. The weights must be rounded already (lab round): the
    published certificate is theirs.
    """
    from lab.publish import publish as publish_run

    for path in publish_run(run, results, pretrained=pretrained, overwrite=overwrite):
        typer.echo(f"wrote    {path}")


def pack(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER", help="Folders that lab publish wrote.")],
) -> None:
    """Pack the rows of published runs into one small file each.

    Example:  python -m lab pack lab/results/mine

    Replaces the CSV files by rows.npz.xz and removes the training log. Radii keep their bits; margins are rounded down.
    """
    from lab.packed import pack as pack_rows

    for folder in folders:
        path = pack_rows(folder)
        typer.echo(f"wrote    {path}: {path.stat().st_size:,} bytes")
