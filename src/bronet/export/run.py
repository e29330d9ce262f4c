"""Export a trained run or any model, and keep the file only after running and comparing it.

An ordinary file computes in float32. The file of a proof holds its float64 program, operation by operation, and the
certificate names it; docs/export.md explains what either means for radii.
"""

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from bronet.errors import BronetError
from bronet.export.program import (
    ExportFacts,
    Runner,
    content_of,
    frozen_program,
    proved_program,
    require_onnx,
    write_program,
)
from bronet.files import replace_file, write_object
from bronet.graph.network import ProvedNetwork, prove
from bronet.layers import frozen
from bronet.run.certificate import ProgramFile, check_same, file_hash, network_hashes, read_certificate
from bronet.run.folder import RunFolder, open_run
from bronet.run.weights import load_model
from bronet.wording import Format

# The comparison uses batches of these sizes, which tracing did not use.
_BATCHES = (1, 15)
# Relative to the largest logit: float32 sums of thousands of numbers in another order, through dozens of layers.
_LARGEST_DIFFERENCE = {torch.float32: 1e-3, torch.float64: 1e-9}


@dataclass(frozen=True)
class Exported:
    """The written file, and the largest differences of its logits over random images with pixels in [0, 1].

    `from_float32` is the difference from the model's float32 forward, `from_float64` that from the program of a
    certificate.
    """

    path: Path
    facts: ExportFacts
    images: int
    from_float32: float
    from_float64: float


def export_run(
    run: RunFolder | Path | str, *, format: Format = Format.ONNX, out: Path | None = None, proved: bool = False
) -> Exported:
    """Export the trained network of a run to `out`, by default model.onnx or model.pt2 in its folder.

    Classes have their names in the run's certificate; without a certificate they are numbers. With `proved` the file
    holds the program of the certificate, which must be there, and which then names it by its hash.
    """
    run = open_run(run)
    path = run.exported(format, proved=proved) if out is None else out
    facts = run.certificate(run.certified_split()).facts
    certificate = read_certificate(facts) if facts.is_file() else None
    network = network_hashes(run)
    if proved and (certificate is None or certificate.network != network):
        raise BronetError(
            f"a proved program must have a certificate of its network, got none in {run.path}; certify it"
        )
    done = export_model(
        load_model(run),
        path,
        image_shape=run.recipe.data.spec().shape,
        format=format,
        classes=certificate.classes if certificate else (),
        weights_sha256=network["weights_sha256"],
        proved=proved,
    )
    if proved and certificate is not None:
        others = tuple(program for program in certificate.programs if program.name != path.name)
        named = replace(certificate, programs=(*others, ProgramFile(name=path.name, sha256=file_hash(path))))
        write_object(facts, named.sealed())
    return done


def verify_programs(run: RunFolder | Path | str) -> list[Path]:
    """Confirm the programs that a run's certificate names, and return those that are there; raise where one differs.

    They have the bytes that are named, the operations of a proof made now, and its numbers up to the rounding of
    another machine.
    """
    run = open_run(run)
    named = read_certificate(run.certificate(run.certified_split()).facts).programs
    there = {program: run.path / program.name for program in named if (run.path / program.name).is_file()}
    if not there:
        return []
    network = prove(load_model(run), run.recipe.data.spec().shape)
    facts = ExportFacts.of(network, classes=(), weights_sha256="", proved=True)
    for program, path in there.items():
        check_same(program.name, file_hash(path), program.sha256)
        format = Format.TORCH if path.suffix == Format.TORCH.suffix else Format.ONNX
        with TemporaryDirectory() as folder:
            again = Path(folder) / path.name
            write_program(again, format, proved_program(network), facts, weights=again.with_suffix(".data"))
            (operations, numbers), (wanted, expected) = content_of(path, format), content_of(again, format)
        check_same(f"operations of {program.name}", operations == wanted and numbers.keys() == expected.keys(), True)
        for name, number in numbers.items():
            same = number.shape == expected[name].shape and torch.allclose(number, expected[name], rtol=1e-9, atol=0)
            check_same(f"{name} of {program.name}", same, True)
    return list(there.values())


@torch.no_grad()
def export_model(
    model: nn.Module,
    path: Path | str,
    *,
    image_shape: tuple[int, ...] | None = None,
    format: Format = Format.ONNX,
    classes: Sequence[str] = (),
    weights_sha256: str | None = None,
    proved: bool = False,
) -> Exported:
    """Write a model's float32 evaluation forward, or the program of its proof, as a file for any number of images.

    Guaranteed: the file was run on the CPU before it got its final name, and its logits are those of the model's
    float32 forward up to rounding; its gap matrix is an upper bound for the float64 network (`prove(model)`). Not
    guaranteed: that a radius from its float32 logits covers their rounding (docs/export.md). With `proved` the file
    holds the operations and the numbers of that network, which a certificate speaks of.
    """
    path = Path(path)
    if path.suffix != format.suffix:
        raise BronetError(f"a file of format {format} must end in {format.suffix}, got {path}")
    if format is Format.ONNX:
        require_onnx()
    model = copy.deepcopy(model).to(device="cpu").eval()
    model = model if proved else model.to(dtype=torch.float32)
    network = prove(model, image_shape)
    hashed = weights_sha256 or _weights_hash(model)
    facts = ExportFacts.of(network, classes=classes, weights_sha256=hashed, proved=proved)
    program = proved_program(network) if proved else frozen_program(model, network.image_shape)
    weights = path.with_name(f"{path.stem}-{facts.weights_sha256[:12]}.data")  # of a file that cannot hold them
    was_there = weights.exists()
    measured: list[tuple[float, float]] = []

    def write_and_run(temporary: Path) -> None:
        runner = write_program(temporary, format, program, facts, weights=weights)
        measured.append(_differences(runner, model.float(), network, torch.float64 if proved else torch.float32))

    try:
        replace_file(path, write_and_run)
    except BaseException:
        if not was_there:
            weights.unlink(missing_ok=True)
        raise
    return Exported(path, facts, sum(_BATCHES), *measured[0])


def _differences(runner: Runner, model: nn.Module, network: ProvedNetwork, dtype: torch.dtype) -> tuple[float, float]:
    """Return the largest differences of the file's logits from the model's and from the proof's.

    Raise if the one in the file's own dtype is large, or no number.
    """
    generator = torch.Generator().manual_seed(0)
    batches = [torch.rand(count, *network.image_shape, generator=generator) for count in _BATCHES]
    with frozen(model):
        logits, wanted, proved = (
            torch.cat([run(images).double() for images in batches])
            for run in (lambda images: runner(images.to(dtype)), model, network.logits)
        )
    largest = max(1.0, float(wanted.abs().max()))
    found = {torch.float32: float((logits - wanted).abs().max()), torch.float64: float((logits - proved).abs().max())}
    if not found[dtype] <= _LARGEST_DIFFERENCE[dtype] * largest:
        raise BronetError(
            f"logits of the exported file must be within {_LARGEST_DIFFERENCE[dtype]:g} of the model's, relative to "
            f"the largest, {largest:.3g}; they differ by {found[dtype]:.3g}, so nothing was written"
        )
    return found[torch.float32], found[torch.float64]


def _weights_hash(model: nn.Module) -> str:
    """Return a hash over the names and numbers of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
