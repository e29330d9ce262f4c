"""`bronet attack`: what an adversary finds, set against what is proved."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from bronet.cli.exit_status import ExitStatus
from bronet.cli.options import (
    DataDirOption,
    Device,
    DeviceOption,
    RunArgument,
    SplitOption,
    chosen_split,
    device_name,
    run_folder,
    typed_command,
)

if TYPE_CHECKING:
    from rich.console import Console

    from bronet.attack.run import AttackedRun


DEFAULT_EPS = "36/255"


class AttackKind(StrEnum):
    """Which attack."""

    AUTOATTACK = "autoattack"
    PGD = "pgd"


class NormKind(StrEnum):
    """Which ball."""

    L2 = "l2"
    LINF = "linf"


def attack(
    run: RunArgument,
    *,
    norm: Annotated[NormKind, typer.Option("--norm", help="Which ball.")] = NormKind.L2,
    eps: Annotated[
        list[str] | None,
        typer.Option(
            "--eps",
            metavar="RADIUS",
            help=f"Radius of the ball; may be repeated. Default: {DEFAULT_EPS}.",
            show_default=False,
        ),
    ] = None,
    kind: Annotated[
        AttackKind, typer.Option("--attack", help="AutoAttack (standard), or projected gradient ascent.")
    ] = AttackKind.AUTOATTACK,
    split: SplitOption = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Only the first N images.", metavar="N", show_default=False)
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps of pgd per restart.")] = 100,
    restarts: Annotated[int, typer.Option("--restarts", min=1, help="Restarts of pgd.")] = 5,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Images that are attacked at once.")] = 250,
    seed: Annotated[int, typer.Option("--seed", help="Seed of random starts.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start anew instead of going on.")] = False,
    device: DeviceOption = Device.AUTO,
    data_dir: DataDirOption = None,
) -> None:
    """Try to break a network, and compare with its certificate.

    Example:  bronet attack runs/quickstart --norm l2 --eps 36/255 --attack pgd

    Writes into the run folder: attack-....csv (one row per image, after every batch; a stopped attack goes on from it)
    and attack-....json. Ends with status 3, and names the image, if a certified image is broken.
    """
    from bronet.attack.judge import CertificateBrokenError
    from bronet.attack.run import attack_run
    from bronet.cli.console import counting, open_console, say
    from bronet.data import load_images
    from bronet.run.attack_rows import AttackPlan

    console = open_console()
    folder = run_folder(run)
    data = folder.recipe.data
    chosen = chosen_split(split, data, data_dir=data_dir).value
    plans = [
        AttackPlan(
            attack=kind.value,
            norm=norm.value,
            eps=radius,
            split=chosen,
            steps=steps,
            restarts=restarts,
            seed=seed,
            batch_size=batch_size,
        )
        for radius in eps or [DEFAULT_EPS]
    ]
    place = device_name(device)
    images = load_images(data, chosen, limit=limit, data_dir=data_dir, classes=folder.classes())
    for plan in plans:
        try:
            with counting(console, "attacking") as show:
                result = attack_run(
                    folder,
                    plan,
                    images=images,
                    overwrite=overwrite,
                    device=place,
                    command=typed_command(),
                    progress=show,
                    warn=lambda line: say(console, f"warning: {line}"),
                )
        except CertificateBrokenError as error:
            typer.echo(f"broken: {error}", err=True)
            raise typer.Exit(ExitStatus.BROKEN_CERTIFICATE) from None
        show_attack(console, result)


def show_attack(console: "Console", result: "AttackedRun") -> None:
    """Print the three accuracies between which the truth lies."""
    from bronet.cli.console import facts_table, say
    from bronet.report.table import percent

    found = result.facts
    facts = [
        ("images", f"{len(result.rows):,}"),
        ("clean accuracy", percent(found.clean_accuracy or 0.0)),
        (f"not broken, {found.norm} {found.eps}", percent(found.robust_accuracy or 0.0)),
        (f"proved, {found.norm} {found.eps}", percent(found.certified_accuracy or 0.0)),
        ("certified images broken", "0"),
    ]
    console.print(facts_table(facts))
    say(console, f"rows:    {result.path}")
