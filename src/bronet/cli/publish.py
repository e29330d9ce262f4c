"""`bronet round` and `bronet publish`: from a run to evidence that others can check, and weights that they can load."""

from pathlib import Path
from typing import Annotated

import typer

from bronet.cli.options import checked_folder, command_for

RunFolderArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.", show_default=False)]


def round_weights(
    run: RunFolderArgument,
    *,
    out: Annotated[
        Path,
        typer.Option("--out", help="Run folder for the rounded weights.", show_default=False, callback=checked_folder),
    ],
) -> None:
    """Round the weights of a run to bf16, in a new run folder.

    Example:  bronet round runs/quickstart --out runs/quickstart-bf16

    Writes into --out: model.safetensors (kernels and matrices in bf16) and copies of recipe, log and record. What was
    proved of RUN is not copied: certify the new folder.
    """
    from bronet.pretrained import round_run

    result = round_run(run, out)
    typer.echo(f"rounded: {result.weights}\nnext:    {command_for('certify', result.path)}")


def publish(
    run: RunFolderArgument,
    *,
    results: Annotated[
        Path,
        typer.Option("--results", help="Folder for the evidence.", show_default=False),
    ],
    pretrained: Annotated[
        str | None,
        typer.Option(
            "--pretrained", metavar="MODEL/DATA", help="Also keep the network under this name.", show_default=False
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what --results holds.")] = False,
) -> None:
    """Publish a certified run. Its evidence as text, its network as a pretrained folder.

    Example:  bronet publish runs/quickstart-bf16 --results lab/results/digits --pretrained bronet-digits/digits

    Writes into --results: recipe, record, log, certificates with their rows, and attacks, without machine paths.
    With --pretrained also config.json, model.safetensors and a model card inside this package; the weights must be
    rounded already (bronet round), so that the published certificate is theirs.
    """
    from bronet.pretrained.publish import publish as publish_run

    for path in publish_run(run, results, pretrained=pretrained, overwrite=overwrite):
        typer.echo(f"wrote    {path}")
