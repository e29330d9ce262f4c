"""Export a trained run or any certifiable model, and keep the file only after running and comparing it.

The file computes in float32; docs/export.md explains what that means for its radii.
"""

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bronet.errors import BronetError
from bronet.export import files
from bronet.export.frozen_program import frozen_program
from bronet.files import replace_file
from bronet.graph.network import ProvedNetwork, prove
from bronet.layers import frozen
from bronet.models import CertifiableModel
from bronet.run.certificate import file_hash, read_certificate
from bronet.run.folder import RunFolder, open_run
from bronet.run.weights import load_model
from bronet.wording import Format

# The comparison uses batches of these sizes, which tracing did not use.
_BATCHES = (1, 15)
# Relative to the largest logit: float32 sums of thousands of numbers in another order, through dozens of layers.
_LARGEST_DIFFERENCE = 1e-3


@dataclass(frozen=True)
class Exported:
    """The written file, and the largest differences of its logits over random images with pixels in [0, 1].

    `from_float32` is the difference from the model's float32 forward, `from_float64` that from the program of a
    certificate.
    """

    path: Path
    facts: files.ExportFacts
    images: int
    from_float32: float
    from_float64: float


def export_run(run: RunFolder | Path | str, *, format: Format = Format.ONNX, out: Path | None = None) -> Exported:
    """Export the trained network of a run to `out`, by default model.onnx or model.pt2 in its folder.

    Classes have their names in the run's certificate; without a certificate they are numbers.
    """
    run = open_run(run)
    weights = file_hash(run.weights)
    path = run.exported(format) if out is None else out
    facts = run.certificate().facts
    classes = read_certificate(facts).classes if facts.is_file() else ()
    return export_model(load_model(run), path, format=format, classes=classes, weights_sha256=weights)


@torch.no_grad()
def export_model(
    model: CertifiableModel,
    path: Path | str,
    *,
    format: Format = Format.ONNX,
    classes: Sequence[str] = (),
    weights_sha256: str | None = None,
) -> Exported:
    """Write a model's float32 evaluation forward as a file for any number of images; the model is not changed.

    Guaranteed: the file was run on the CPU before it got its final name, and its logits are those of the model's
    float32 forward up to rounding; its gap matrix is an upper bound for the float64 network (`prove(model)`). Not
    guaranteed: that a radius from its float32 logits covers their rounding (docs/export.md).
    """
    path = Path(path)
    if path.suffix != format.suffix:
        raise BronetError(f"a file of format {format} must end in {format.suffix}, got {path}")
    if format is Format.ONNX:
        files.require_onnx()
    model = copy.deepcopy(model).to(device="cpu", dtype=torch.float32).eval()
    network = prove(model)
    facts = files.ExportFacts.of(
        network,
        classes=classes or [str(number) for number in range(model.head.classes)],
        weights_sha256=weights_sha256 or _weights_hash(model),
    )
    program = frozen_program(model)
    weights = path.with_name(f"{path.stem}-{facts.weights_sha256[:12]}.data")  # of a file that cannot hold them
    was_there = weights.exists()
    measured: list[tuple[float, float]] = []

    def write_and_run(temporary: Path) -> None:
        if format is Format.ONNX:
            runner = files.write_onnx(temporary, program, facts, weights=weights)
        else:
            runner = files.write_torch(temporary, program, facts)
        measured.append(_differences(runner, model, network))

    try:
        replace_file(path, write_and_run)
    except BaseException:
        if not was_there:
            weights.unlink(missing_ok=True)
        raise
    return Exported(path, facts, sum(_BATCHES), *measured[0])


def _differences(runner: files.Runner, model: CertifiableModel, network: ProvedNetwork) -> tuple[float, float]:
    """Return the largest differences of the file's logits from the model's, in float32 and float64; raise if large."""
    generator = torch.Generator().manual_seed(0)
    float32 = float64 = largest = 0.0
    with frozen(model):
        for count in _BATCHES:
            images = torch.rand(count, *model.image_shape, generator=generator)
            logits, expected = runner(images), model(images)
            largest = max(largest, float(expected.abs().max()))
            float32 = max(float32, float((logits - expected).abs().max()))
            float64 = max(float64, float((logits.double() - network.logits(images)).abs().max()))
    if not float32 <= _LARGEST_DIFFERENCE * max(1.0, largest):
        raise BronetError(
            f"logits of the exported file must be within {_LARGEST_DIFFERENCE:g} of the model's, relative to the "
            f"largest, {largest:.3g}; they differ by {float32:.3g}, so nothing was written"
        )
    return float32, float64


def _weights_hash(model: CertifiableModel) -> str:
    """Return a hash over the names and numbers of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
