"""`bronet certify`, `verify` and `check`: a radius for every image, proved and checked; a bound for every layer."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bronet.cli import options
from bronet.errors import BronetError
from bronet.run.shares import Share

if TYPE_CHECKING:
    from bronet.certificates.execution import Executed
    from bronet.run.certificate import CertificateFile
    from bronet.run.folder import RunFolder


def certify(
    run: options.OptionalRunArgument = None,
    *,
    pretrained: Annotated[
        Path | None, typer.Option(metavar="NAME", help="A pretrained network, by name or folder, in place of RUN.")
    ] = None,
    out: Annotated[
        Path | None, options.out_option("Run folder of a pretrained network. Default: runs/NAME, with dashes.")
    ] = None,
    eps: options.EpsOption = None,
    model: options.ModelOption = None,
    split: options.SplitOption = None,
    limit: options.LimitOption = None,
    targeted: Annotated[
        bool, typer.Option("--targeted", help="Also write targeted.csv: how far each image is from each class.")
    ] = False,
    naive: Annotated[
        bool, typer.Option("--naive", help="Also show the numbers of the literature's way, which is not a proof.")
    ] = False,
    execution: Annotated[
        Literal["float32", "bf16"] | None,
        typer.Option(help="Also tell how many radii survive where the network runs in fewer digits."),
    ] = None,
    device: options.DeviceOption = "auto",
    data_dir: options.DataDirOption = None,
    download: options.DownloadOption = False,
) -> None:
    """Prove how far each image is from changing its class.

    Example:  bronet certify runs/quickstart --eps 1/4 --eps 1/2

    At the radii of --eps, or of the recipe; in float64, with rounding counted. Writes into the run folder:
    certificate.csv (one row per image) and certificate.json (the proved bound of every layer); of other splits
    certificate-train.csv and so on. `bronet verify` checks them later. A pretrained network is copied to a run folder
    first.
    """
    from bronet.cli.console import say, show_naive

    named = run or pretrained
    if named is None or (run and pretrained):
        raise BronetError("give either RUN or --pretrained NAME, and not both")
    place = options.usable_device(device)
    with options.opened_runs(named, out=out, model=model) as (folder,):
        certificate = certify_and_show(
            folder,
            eps=eps or (),
            split=options.chosen_split(split, folder.recipe.data, data_dir=data_dir, download=download),
            limit=limit,
            targeted=targeted,
            device=place,
            data_dir=data_dir,
            download=download,
        )
        if naive:
            from bronet.report.evidence import read_evidence

            show_naive(read_evidence(folder, split=certificate.split).naive().statistics)
        if execution is not None:
            from bronet.certificates.execution import execute_run

            chosen = certificate.split
            _show_execution(execution, execute_run(folder, execution, split=chosen, device=place, data_dir=data_dir))
    say(f"next:    {options.command_for('report', folder.path)}")


def certify_and_show(
    run: "RunFolder",
    *,
    eps: Sequence[str] = (),
    split: options.Split = "test",
    limit: int | None = None,
    targeted: bool = False,
    device: str = "cpu",
    data_dir: Path | None = None,
    download: bool = False,
) -> "CertificateFile":
    """Certify a run, print its table and where its rows are, and return the certificate."""
    from bronet.certificates.run import certify_run
    from bronet.cli.console import counting, note_of_few, say, show_results
    from bronet.run.certificate import compute_statistics

    with counting("certifying") as show:
        done = certify_run(
            run,
            eps=tuple(eps),
            split=split,
            limit=limit,
            targeted=targeted,
            device=device,
            data_dir=data_dir,
            download=download,
            command=options.typed_command(),
            progress=show,
            share=Share.of_this_process(),
        )
    statistics = compute_statistics(done.rows, done.certificate.eps)
    show_results(run.path.resolve().name, done.certificate, statistics)
    note_of_few(len(done.rows), split=split, limit=limit)
    say(f"rows:    {run.certificate(split).rows}")
    return done.certificate


def _show_execution(execution: str, done: "Executed") -> None:
    """Print what is proved of a certificate in another execution, and what is only measured."""
    from bronet.cli.console import say

    if done.surviving is None:
        say(f"{execution}: not proved; no useful bound on rounding is known")
    else:
        say(f"{execution}: {done.surviving:,} of {done.radii:,} radii survive, for the program of the proof")
        shares = (f"{eps}: {new:.1%} ({old:.1%} in float64)" for eps, (old, new) in done.certified.items())
        say(f"certified in {execution} at {', '.join(shares)}")
    say(
        f"measured, not proved: in {execution} the network gives another class to {done.other_classes:,} of "
        f"{done.images:,} images; logits differ by at most {done.largest_difference:.1e}"
    )


def verify(
    certificate: Annotated[
        Path, typer.Argument(metavar="RUN", help="A certified run or pretrained network, or a certificate.json.")
    ],
    *,
    model: options.ModelOption = None,
    device: options.DeviceOption = "auto",
    data_dir: options.DataDirOption = None,
    download: options.DownloadOption = False,
) -> None:
    """Prove a certificate again, from weights and images. Refuse it if a byte or a number differs.

    Example:  bronet verify runs/quickstart

    Compares the hashes of weights, recipe, images and rows, then proves every radius again. Writes nothing.
    """
    from bronet.certificates.verify import verify_run
    from bronet.cli.console import counting, say
    from bronet.export import verify_programs
    from bronet.run.folder import open_run

    is_file = certificate.suffix == ".json"
    run = open_run(certificate.parent).path if is_file else certificate
    with options.opened_runs(run, model=model) as (folder,), counting("verifying") as show:
        result = verify_run(
            certificate if is_file else folder,
            network=folder.network,
            device=options.usable_device(device),
            data_dir=data_dir,
            download=download,
            progress=show,
        )
        programs = verify_programs(folder)
    for path in programs:
        say(f"verified: {path} is the program of the certificate")
    say(f"verified: {result.images:,} images; no radius is above what is proved again")
    say(f"recorded radii lie at most {result.largest_difference:.1e} below their proof")


def check(run: options.RunArgument, model: options.ModelOption = None) -> None:
    """Tell the Lipschitz bound of every layer of a network. The largest is set in bold.

    Example:  bronet check runs/quickstart

    Writes nothing. Models of your own that are not saved: bronet.check(model, input_shape) in Python (docs/convert.md).
    """
    from bronet.cli.console import open_console
    from bronet.graph import check as check_model
    from bronet.pretrained import load_pretrained
    from bronet.run.folder import RunFolder
    from bronet.run.weights import load_model

    folder = RunFolder(run)
    if model is None or not folder.recipe_file.is_file():
        open_console().print(check_model(load_pretrained(run)))
        return
    folder = options.own_run(folder, model)
    open_console().print(check_model(load_model(folder), folder.recipe.data.spec().shape))
