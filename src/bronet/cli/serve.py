"""`bronet serve`: a page in the browser that shows what is proved of an image."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from bronet.cli.options import DataDirOption, Device, DeviceOption, device_name, run_folder

DEFAULT_PORT = 8017
DEFAULT_HOST = "127.0.0.1"
SAMPLES = 120


def serve(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN", help="Trained runs or networks. Default: runs/quickstart.", show_default=False),
    ] = None,
    *,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; the default is this machine only.")] = (
        DEFAULT_HOST
    ),
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes any free one.")] = DEFAULT_PORT,
    samples: Annotated[int, typer.Option("--samples", min=1, max=1000, help="Test images to choose from.")] = SAMPLES,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page, if this is a terminal.")
    ] = True,
    device: DeviceOption = Device.AUTO,
    data_dir: DataDirOption = None,
) -> None:
    """Open a page that shows the proof of an image, and attacks it.

    Example:  bronet serve runs/quickstart

    Writes nothing, except that a pretrained network is copied to a run folder first. Ctrl-C ends it.
    Needs pip install 'bronet[web]'.
    """
    from bronet.cli.console import open_console, say
    from bronet.web.server import address, is_local, open_socket, require_web

    require_web()
    place, local = device_name(device), is_local(host)
    with open_socket(host, port) as listening:
        from bronet.web.served import Gallery, read_cards
        from bronet.web.server import serve as serve_page

        console = open_console()
        gallery = Gallery(
            read_cards([str(run_folder(Path(run)).path) for run in runs or []]),
            samples=samples,
            device=place,
            data_dir=data_dir,
        )
        say(console, f"proving  {gallery.cards[0].name}")
        gallery.open(0)
        if not local:
            say(console, f"warning: whoever reaches {host} can use this page and this machine's time")
        say(console, f"serving  {address(listening, host)}  (Ctrl-C ends it)")
        if browser and sys.stdout.isatty():
            import webbrowser

            webbrowser.open(address(listening, host))
        serve_page(gallery, listening, local=local)
