"""Certificate files as `bronet certify` writes them, with content chosen by a test."""

import json
from dataclasses import replace
from pathlib import Path

from bronet.files import sealed
from bronet.run.certificate import CertificateFile, LayerBound, Rounding, SoundnessCost, file_hash
from bronet.run.folder import RunFolder

NO_COST = SoundnessCost(median=None, worst=None, relative_median=None, relative_worst=None)
CERTIFICATE = CertificateFile(
    data="digits",
    split="test",
    images=4,
    classes=(),
    pixels=64,
    eps=("1/4", "1/2"),
    lipschitz=1.0234567891,
    layers=(
        LayerBound(name="stem", kind="<b>Conv</b>", lipschitz=1.0234567, rounding_gain=1e-15),
        LayerBound(name="backbone.0", kind="BROConv2d", lipschitz=1.0 + 2**-40, rounding_gain=2e-14),
    ),
    rounding=Rounding(worst=3e-11, median=2e-11),
    soundness_cost=NO_COST,
    precision="float64",
    device="cpu",
    seconds=1.5,
    command="bronet certify runs/first --eps 1/4 --eps 1/2",
    weights_sha256="ab" * 32,
    recipe_sha256="cd" * 32,
    images_sha256="ef" * 32,
    rows_sha256="",
)


def write_certificate(folder: Path, certificate: CertificateFile = CERTIFICATE) -> None:
    """Write the certificate of the rows that are in the folder."""
    files = RunFolder(folder).certificate(certificate.split)
    certificate = replace(certificate, rows_sha256=file_hash(files.rows))
    files.facts.write_text(json.dumps(certificate.sealed(), indent=2))


def edit_certificate(path: Path, **changes: object) -> None:
    """Change keys of a certificate and seal it again, as a liar can; None removes a key."""
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(sealed({key: value for key, value in content.items() if value is not None})))
