"""The two formats of an exported network, and their metadata (docs/export.md).

ONNX is one file with metadata; weights that do not fit into it go to a second file, named by the hash of the weights.
The torch.export format is a .pt2 archive with the metadata as a JSON file inside it (`extra_files`). The metadata is
enough to turn logits into a radius. Its constants are proved, as in a certificate, but the logits are those of a
float32 program.
"""

import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from bronet.__about__ import __version__
from bronet.errors import BronetError
from bronet.graph.network import ProvedNetwork
from bronet.wording import Format

PIXELS = "{} in [0, 1]; normalisation is inside the network"
NOMINAL = "nominal radius of predicted class t: min over j of (f_t - f_j) / gap_lipschitz[t][j]; rounding not covered"
PROVED = "the program of a certificate, which names this file by its SHA-256, in runtimes of the standard model"
INPUT, OUTPUT, BATCH = "images", "logits", "batch"
# A protobuf message ends at 2^31 bytes; the graph around the weights needs little.
LARGEST_SINGLE_FILE = 2**31 - 2**26
_NEEDED = ("onnx", "onnxscript", "onnxruntime")
FACTS_FILE = "bronet.json"
Runner = Callable[[Tensor], Tensor]
"""A written file as a function of images."""


@dataclass(frozen=True)
class ExportFacts:
    """The metadata of an exported network; `gap_lipschitz[t][j]` bounds the Lipschitz constant of f_t - f_j."""

    lipschitz: float
    gap_lipschitz: tuple[tuple[float, ...], ...]
    classes: tuple[str, ...]
    image_shape: tuple[int, ...]
    weights_sha256: str
    proved: bool = False

    @classmethod
    def of(
        cls, network: ProvedNetwork, *, classes: Sequence[str], weights_sha256: str, proved: bool = False
    ) -> "ExportFacts":
        """Return the facts of a proved network; without names, classes are numbers."""
        gaps = network.gap_lipschitz
        classes = classes or [str(number) for number in range(len(gaps))]
        if len(classes) != len(gaps):
            raise BronetError(f"classes must name all {len(gaps)} outputs of the model, got {len(classes)} names")
        matrix = tuple(tuple(row) for row in gaps.tolist())
        return cls(network.lipschitz, matrix, tuple(classes), network.image_shape, weights_sha256, proved)

    def entries(self) -> dict[str, object]:
        """Return the entries of the file."""
        pixels, meaning = PIXELS.format("float64" if self.proved else "float32"), PROVED if self.proved else NOMINAL
        return {"bronet_version": __version__, "pixels": pixels, "meaning": meaning, **asdict(self)}


def require_onnx() -> None:
    """Raise unless the packages of the extra `onnx` are installed."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise BronetError(f"format onnx needs the package {missing[0]}; install it with: pip install 'bronet[onnx]'")


def write_onnx(path: Path, program: ExportedProgram, facts: ExportFacts, *, weights: Path) -> Runner:
    """Write the program to `path` and return the file; weights too large for it go to `weights`, in the same folder."""
    import onnx_ir

    model = _converted(program)
    model.metadata_props.update({key: json.dumps(value, ensure_ascii=False) for key, value in facts.entries().items()})
    size = sum(t.numel() * t.element_size() for t in (*program.state_dict.values(), *program.constants.values()))
    onnx_ir.save(model, path, external_data=weights.name if size > LARGEST_SINGLE_FILE else None)
    return onnx_runner(path)


def _converted(program: ExportedProgram) -> Any:  # an onnx_ir.Model, which needs the extra
    """Return the ONNX graph without references to its source, and with a named batch dimension."""
    import onnx_ir
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)  # it mentions packages that are not needed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, onnxscript and onnx about one another
            converted = torch.onnx.export(program, input_names=[INPUT], output_names=[OUTPUT], verbose=False)
    finally:
        exporter.setLevel(level)
    assert converted is not None
    model = converted.model
    ClearMetadataAndDocStringPass()(model)
    for value in (*model.graph.inputs, *model.graph.outputs):
        assert value.shape is not None
        value.shape = onnx_ir.Shape([BATCH, *list(value.shape)[1:]])
    return model


def onnx_runner(path: Path) -> Runner:
    """Return the file as a function of images, run by onnxruntime on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run([OUTPUT], {INPUT: images.numpy()})[0])


def write_torch(path: Path, program: ExportedProgram, facts: ExportFacts) -> Runner:
    """Write the program and its facts to `path` and return the file, as a function of images."""
    archive = io.BytesIO()  # torch's own writer would end the process on a full disk
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch.export warns of parts of torch
        torch.export.save(program, archive, extra_files={FACTS_FILE: json.dumps(facts.entries(), indent=2)})
        path.write_bytes(archive.getbuffer())
        with path.open("rb") as file:
            return torch.export.load(file).module()


def content_of(path: Path, format: Format) -> tuple[str, dict[str, Tensor]]:
    """Return the operations of a written file as text, and its constants by name."""
    if format is Format.TORCH:
        program = torch.export.load(path)
        return str(program.graph), {**program.state_dict, **program.constants}
    import onnx_ir

    graph = onnx_ir.load(path).graph
    values = {name: value.const_value for name, value in graph.initializers.items()}
    constants = {name: torch.from_numpy(value.numpy().copy()) for name, value in values.items() if value is not None}
    return "\n".join(map(str, graph)), constants
