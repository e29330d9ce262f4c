"""`bronet report`, `serve` and `export`: what is proved, as files, as a page and as a network for others."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from bronet.cli import options
from bronet.wording import Format

COMPARISON = Path("report")
"""Where a comparison of runs goes by default."""


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Certified runs.")],
    *,
    out: Annotated[
        Path | None, options.out_option("Folder to write to. Default: report; of one run, report/ in its folder.")
    ] = None,
    model: options.ModelOption = None,
    eps: options.EpsOption = None,
    data_dir: options.DataDirOption = None,
) -> None:
    """Draw tables, curve and HTML page of certified runs.

    Example:  bronet report runs/quickstart

    One run: writes report.html, summary.md, .json and .csv, and the certified accuracy and the margins as curve and
    margins, .png and .pdf, into its folder report/. Several: writes comparison.html, .md, .csv and .json, curve and
    margins into the folder report. --out names another folder to write to, --eps other radii to count at than the
    certificate's. Needs no weights. The page shows images where the data set is at hand.
    """
    from bronet.cli.console import say, show_comparison, show_results
    from bronet.report import write_comparison, write_report
    from bronet.report.evidence import at_radii, read_evidence
    from bronet.report.table import table_cells

    with options.opened_runs(*runs, model=model) as folders:
        evidence = at_radii([read_evidence(folder) for folder in folders], eps or ())
        if len(folders) == 1:
            written = write_report(evidence[0], out, data_dir=data_dir)
        else:
            written = write_comparison(evidence, out or COMPARISON, data_dir=data_dir)
    if len(folders) == 1:
        show_results(evidence[0].name, evidence[0].certificate, evidence[0].statistics)
    else:
        show_comparison(table_cells(evidence))
    for path in written:
        say(f"wrote    {path}")


def serve(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN", help="Trained runs or networks. Default: runs/quickstart.")
    ] = None,
    *,
    model: options.ModelOption = None,
    host: Annotated[str, typer.Option(help="Address to listen on; the default is this machine only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes any free one.")] = 8017,
    samples: Annotated[int, typer.Option(min=1, max=1000, help="Test images to choose from.")] = 120,
    browser: Annotated[bool, typer.Option(help="Open the page, if this is a terminal.")] = True,
    device: options.DeviceOption = "auto",
    data_dir: options.DataDirOption = None,
    download: options.DownloadOption = False,
) -> None:
    """Open a page that proves an image and attacks it.

    Example:  bronet serve runs/quickstart

    Writes nothing, except that a pretrained network is copied to a run folder first. Ctrl-C ends it.
    Needs pip install 'bronet[web]'.
    """
    import webbrowser

    from bronet.cli.console import say
    from bronet.data import provide_images
    from bronet.web import address, is_local, open_socket, require_web

    require_web()
    from bronet.web.served import Gallery, read_cards
    from bronet.web.server import Server

    place, local = options.usable_device(device), is_local(host)
    with open_socket(host, port) as listening, options.opened_runs(*(runs or ()), model=model) as folders:
        for folder in folders if download else ():
            provide_images(folder.recipe.data, "test", data_dir=data_dir, download=True)
        cards = read_cards(folders)
        gallery = Gallery(cards, samples=samples, device=place, data_dir=data_dir)
        say(f"proving  {cards[0].name}")
        gallery.open(0)
        if not local:
            say(f"warning: whoever reaches {host} can use this page and this machine's time")
        say(f"serving  {address(listening, host)}  (Ctrl-C ends it)")
        if browser and sys.stdout.isatty():
            webbrowser.open(address(listening, host))
        Server(gallery, local=local).run(sockets=[listening])


def import_published(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A checkpoint of the published BRONet or LipConvNet.")],
    *,
    out: Annotated[Path | None, options.out_option("Run folder. Default: runs/NAME-OF-THE-FILE.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in that folder.")] = False,
) -> None:
    """Read a checkpoint of the published code as a run.

    Example:  bronet import-published bronet_799.pth --out runs/published

    Writes a run folder, which can be certified, attacked and exported. No code in the file is run. See
    docs/results.md#weights-of-the-published-code for what is read.
    """
    from bronet.cli.console import say
    from bronet.pretrained.published import import_published as read

    run = read(file, out or options.RUNS / file.stem, overwrite=overwrite)
    say(f"read:    {file} as {run.recipe.model.family} for {run.recipe.data.name}, in {run.path}")
    if run.recipe.model.family == "lipconvnet":
        say("         its activation is taken to be MaxMin, which the tensors do not show")
    say(f"next:    {options.command_for('certify', run.path)}")


def export(
    run: options.RunArgument,
    *,
    model: options.ModelOption = None,
    format: Annotated[Format, typer.Option(help="The kind of file.")] = Format.ONNX,
    out: Annotated[
        Path | None, options.out_option("The file. Default: model.onnx or model.pt2 in the run's folder.", file=True)
    ] = None,
    proved: Annotated[
        bool, typer.Option("--proved", help="Write the float64 program of the certificate, which then names it.")
    ] = False,
) -> None:
    """Write the network as one file that runs without bronet.

    Example:  bronet export runs/quickstart --format onnx

    Writes that file. It computes in float32, takes any number of images with pixels in [0, 1], and holds the proved
    constants, from which docs/export.md computes a radius in five lines. It is run, and compared with the network,
    before it takes its name. With --proved the file is the program that the certificate speaks of: proved.onnx or
    proved.pt2. ONNX needs: pip install 'bronet[onnx]'.
    """
    from bronet.cli.console import say, show_facts
    from bronet.export import export_run
    from bronet.wording import bound_text

    with options.opened_runs(run, model=model) as (folder,):
        done = export_run(folder, format=format, out=out, proved=proved)
    size = done.path.stat().st_size / 2**20
    images = f"over {done.images} random images"
    facts = [
        ("file", f"{done.path}, {size:.1f} MiB"),
        ("largest difference", f"{done.from_float32:.2g} from the float32 network, {images}"),
        ("", f"{done.from_float64:.2g} from the float64 network of the certificate"),
        ("Lipschitz bound, before the head", bound_text(done.facts.lipschitz)),
        ("classes", f"{len(done.facts.classes)}: {', '.join(done.facts.classes[:10])}"),
    ]
    show_facts(facts)
    if proved:
        say(f"The certificate of {run} speaks of this file, which it names by its hash: see docs/export.md.")
    else:
        say("A radius from its logits is nominal, not proved: see docs/export.md.")
