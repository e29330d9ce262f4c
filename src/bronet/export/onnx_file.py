"""The ONNX form: one file with metadata, run in onnxruntime before it takes its name.

Weights beyond what one ONNX file can hold go to a second file beside it, named by the hash of the weights.
"""

import importlib.util
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from bronet.errors import BronetError
from bronet.export.facts import ExportFacts

INPUT, OUTPUT, BATCH = "images", "logits", "batch"
# A protobuf message ends at 2^31 bytes; the graph around the weights needs little.
LARGEST_SINGLE_FILE = 2**31 - 2**26
_NEEDED = ("onnx", "onnxscript", "onnxruntime")


def require_onnx() -> None:
    """Raise unless the packages of the extra `onnx` are installed."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise BronetError(f"format onnx needs the package {missing[0]}; install it with: pip install 'bronet[onnx]'")


def write_onnx(
    path: Path,
    program: ExportedProgram,
    facts: ExportFacts,
    *,
    weights_beside: Path | None,
) -> None:
    """Write the program to `path`, its large weights to `weights_beside` if that is given; both in one folder."""
    import onnx_ir

    model = _converted(program)
    model.metadata_props.update(facts.as_text())
    onnx_ir.save(model, path, external_data=None if weights_beside is None else weights_beside.name)


def _converted(program: ExportedProgram) -> Any:  # an onnx_ir.Model, which is not there without the extra
    """Return the ONNX graph, without traces of the source it came from, its batch dimension named."""
    import onnx_ir
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)  # it tells of packages that are not needed
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
