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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from bronet.__about__ import __version__
from bronet.errors import BronetError
from bronet.graph.network import ProvedNetwork

PIXELS = "float32 in [0, 1]; normalisation is inside the network"
MEANING = "nominal radius of predicted class t: min over j of (f_t - f_j) / gap_lipschitz[t][j]; rounding not covered"
INPUT, OUTPUT, BATCH = "images", "logits", "batch"
# A protobuf message ends at 2^31 bytes; the graph around the weights needs little.
LARGEST_SINGLE_FILE = 2**31 - 2**26
_NEEDED = ("onnx", "onnxscript", "onnxruntime")
FACTS_FILE = "bronet.json"


@dataclass(frozen=True)
class ExportFacts:
    """The metadata of an exported network; `gap_lipschitz[t][j]` bounds the Lipschitz constant of f_t - f_j."""

    lipschitz: float
    gap_lipschitz: tuple[tuple[float, ...], ...]
    classes: tuple[str, ...]
    image_shape: tuple[int, ...]
    weights_sha256: str

    @classmethod
    def of(cls, network: ProvedNetwork, *, classes: Sequence[str], weights_sha256: str) -> "ExportFacts":
        """Return the facts of a proved network."""
        gaps = network.gap_lipschitz
        if len(classes) != len(gaps):
            raise BronetError(f"classes must name all {len(gaps)} outputs of the model, got {len(classes)} names")
        matrix = tuple(tuple(row) for row in gaps.tolist())
        return cls(network.lipschitz, matrix, tuple(classes), network.image_shape, weights_sha256)

    def as_text(self) -> dict[str, str]:
        """Return the entries of the file, each value as JSON."""
        values: dict[str, object] = {
            "bronet_version": __version__,
            "pixels": PIXELS,
            "meaning": MEANING,
            "lipschitz": self.lipschitz,
            "gap_lipschitz": self.gap_lipschitz,
            "classes": self.classes,
            "image_shape": self.image_shape,
            "weights_sha256": self.weights_sha256,
        }
        return {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}


def require_onnx() -> None:
    """Raise unless the packages of the extra `onnx` are installed."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise BronetError(f"format onnx needs the package {missing[0]}; install it with: pip install 'bronet[onnx]'")


def write_onnx(path: Path, program: ExportedProgram, facts: ExportFacts, *, weights_path: Path | None) -> None:
    """Write the program to `path`, with its large weights in `weights_path`, in the same folder, if given."""
    import onnx_ir

    model = _converted(program)
    model.metadata_props.update(facts.as_text())
    onnx_ir.save(model, path, external_data=None if weights_path is None else weights_path.name)


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


def onnx_runner(path: Path) -> Callable[[Tensor], Tensor]:
    """Return the file as a function of images, run by onnxruntime on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run([OUTPUT], {INPUT: images.numpy()})[0])


def write_torch(path: Path, program: ExportedProgram, facts: ExportFacts) -> None:
    """Write the program and its facts to `path`."""
    text = json.dumps({key: json.loads(value) for key, value in facts.as_text().items()}, indent=2)
    archive = io.BytesIO()  # torch's own writer would end the process on a full disk
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch.export warns of parts of torch
        torch.export.save(program, archive, extra_files={FACTS_FILE: text})
    path.write_bytes(archive.getbuffer())


def torch_runner(path: Path) -> Callable[[Tensor], Tensor]:
    """Return the file as a function of images."""
    with warnings.catch_warnings(), path.open("rb") as file:
        warnings.simplefilter("ignore", FutureWarning)
        return torch.export.load(file).module()
