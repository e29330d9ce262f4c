"""`bronet attack`: what an adversary finds, set against what is proved."""

from dataclasses import replace
from typing import Annotated, Literal

import typer

from bronet.cli import options
from bronet.run.shares import Share, ShareDone


def attack(
    run: options.RunArgument,
    *,
    model: options.ModelOption = None,
    norm: Annotated[Literal["l2", "linf"], typer.Option(help="Which ball.")] = "l2",
    eps: options.EpsOption = None,
    kind: Annotated[
        Literal["autoattack", "pgd"],
        typer.Option("--attack", help="AutoAttack (standard), or projected gradient ascent."),
    ] = "autoattack",
    split: options.SplitOption = None,
    limit: options.LimitOption = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of pgd per restart.")] = 100,
    restarts: Annotated[int, typer.Option(min=1, help="Restarts of pgd.")] = 5,
    batch_size: Annotated[int, typer.Option(min=1, help="Images that are attacked at once.")] = 250,
    seed: Annotated[int, typer.Option(help="Seed of random starts.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start anew instead of going on.")] = False,
    device: options.DeviceOption = "auto",
    data_dir: options.DataDirOption = None,
    download: options.DownloadOption = False,
) -> None:
    """Try to break a network; compare with its certificate.

    Example:  bronet attack runs/quickstart --norm l2 --eps 36/255 --attack pgd

    At the radii of --eps, or at 36/255. Writes into the run folder: attack-....csv (one row per image, after every
    batch; a stopped attack goes on from it) and attack-....json. Ends with status 3, and names the image, if a
    certified image is broken.
    """
    from bronet.attack.judge import CertificateBrokenError
    from bronet.attack.run import attack_run
    from bronet.cli import ExitStatus
    from bronet.cli.console import counting, note_of_few, say, show_facts
    from bronet.data import load_images
    from bronet.run.attack_rows import AttackPlan
    from bronet.wording import percent

    with options.opened_runs(run, model=model) as (folder,):
        data = folder.recipe.data
        split = options.chosen_split(split, data, data_dir=data_dir, download=download)
        plan = AttackPlan(
            attack=kind, norm=norm, split=split, steps=steps, restarts=restarts, seed=seed, batch_size=batch_size
        )
        plans = [replace(plan, eps=radius) for radius in eps or (plan.eps,)]
        place = options.usable_device(device)
        images = load_images(data, split, limit=limit, data_dir=data_dir, download=download, classes=folder.classes())
        for plan in plans:
            try:
                with counting("attacking") as show:
                    result = attack_run(
                        folder,
                        plan,
                        images=images,
                        overwrite=overwrite,
                        device=place,
                        command=options.typed_command(),
                        progress=show,
                        warn=lambda line: say(f"warning: {line}"),
                        share=Share.of_this_process(),
                    )
            except ShareDone:
                continue
            except CertificateBrokenError as error:
                typer.echo(f"broken: {error}", err=True)
                raise typer.Exit(ExitStatus.BROKEN_CERTIFICATE) from None
            found = result.facts
            facts = [
                ("images", f"{len(result.rows):,}"),
                ("clean accuracy", percent(found.clean_accuracy or 0.0)),
                (f"not broken, {found.norm} {found.eps}", percent(found.robust_accuracy or 0.0)),
                (f"proved, {found.norm} {found.eps}", percent(found.certified_accuracy or 0.0)),
                ("certified images broken", "0"),
            ]
            show_facts(facts)
            say(f"rows:    {result.path}")
    note_of_few(len(images), split=split, limit=limit)
