"""`bronet verify`: does a certificate still hold, byte for byte and number for number?"""

from pathlib import Path
from typing import Annotated

import typer

from bronet.cli.options import DataDirOption, Device, DeviceOption, device_name, run_folder


def verify(
    certificate: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="A certified run or pretrained network, or a certificate.json.", show_default=False
        ),
    ],
    device: DeviceOption = Device.AUTO,
    data_dir: DataDirOption = None,
) -> None:
    """Prove a certificate again, from weights and images. Refuse it if a byte or a number differs.

    Example:  bronet verify runs/quickstart

    Compares the hashes of weights, recipe, images and rows, then proves every radius again. Writes nothing.
    """
    from bronet.certificates.verify import verify_run
    from bronet.cli.console import counting, open_console, say

    console = open_console()
    certified = certificate if certificate.suffix == ".json" else run_folder(certificate)
    with counting(console, "verifying") as show:
        result = verify_run(certified, device=device_name(device), data_dir=data_dir, progress=show)
    say(console, f"verified: {result.images:,} images; no radius is above what is proved again")
    say(console, f"largest difference of a radius: {result.largest_difference:.1e}")
