"""`bronet report` and `bronet serve`: what is proved, as files and as a page that can be asked."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from bronet.cli.options import (
    DataDirOption,
    Device,
    DeviceOption,
    DownloadOption,
    opened_runs,
    out_option,
    usable_device,
)

COMPARISON = Path("report")
"""Where a comparison of runs goes by default."""
HOST = "127.0.0.1"
PORT = 8017
SAMPLES = 120


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Certified runs.")],
    *,
    out: Annotated[
        Path | None, out_option("Folder to write to. Default: report; of one run, report/ in its folder.")
    ] = None,
) -> None:
    """Draw tables, curve and HTML page of certified runs.

    Example:  bronet report runs/quickstart

    One run: writes report.html, summary.md, .json and .csv, and the certified accuracy and the margins as curve and
    margins, .png and .pdf, into its folder report/. Several: writes comparison.md, .csv and .json, curve and margins
    into the folder report. Needs no weights and no data. --out names another folder to write to.
    """
    from bronet.cli.console import open_console, say, show_results
    from bronet.report import write_comparison, write_summary
    from bronet.report.evidence import at_radii_of_all, read_evidence

    console = open_console()
    with opened_runs(*runs) as folders:
        evidence = at_radii_of_all([read_evidence(folder) for folder in folders])
        if len(folders) == 1:
            written = list(write_summary(evidence[0], out or folders[0].report))
        else:
            written = write_comparison(evidence, out or COMPARISON)
    show_results(console, evidence)
    for path in written:
        say(console, f"wrote    {path}")


def serve(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN", help="Trained runs or networks. Default: runs/quickstart.")
    ] = None,
    *,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; the default is this machine only.")] = HOST,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes any free one.")] = PORT,
    samples: Annotated[int, typer.Option("--samples", min=1, max=1000, help="Test images to choose from.")] = SAMPLES,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page, if this is a terminal.")
    ] = True,
    device: DeviceOption = Device.AUTO,
    data_dir: DataDirOption = None,
    download: DownloadOption = False,
) -> None:
    """Open a page that shows the proof of an image, and attacks it.

    Example:  bronet serve runs/quickstart

    Writes nothing, except that a pretrained network is copied to a run folder first. Ctrl-C ends it.
    Needs pip install 'bronet[web]'.
    """
    from bronet.cli.console import open_console, say
    from bronet.data import provide_images
    from bronet.web.server import address, is_local, open_socket, require_web

    require_web()
    place, local = usable_device(device), is_local(host)
    with open_socket(host, port) as listening, opened_runs(*(runs or ())) as folders:
        from bronet.web.served import Gallery, read_cards
        from bronet.web.server import serve as serve_page

        for folder in folders if download else ():
            provide_images(folder.recipe.data, "test", data_dir=data_dir, download=True)
        console = open_console()
        cards = read_cards([str(folder.path) for folder in folders])
        gallery = Gallery(cards, samples=samples, device=place, data_dir=data_dir)
        say(console, f"proving  {gallery.cards[0].name}")
        gallery.open(0)
        if not local:
            say(console, f"warning: whoever reaches {host} can use this page and this machine's time")
        say(console, f"serving  {address(listening, host)}  (Ctrl-C ends it)")
        if browser and sys.stdout.isatty():
            import webbrowser

            webbrowser.open(address(listening, host))
        serve_page(gallery, listening, local=local)
