"""A network as a program of products, in which all that does not depend on the images is a constant, and its files.

torch.export traces the model's evaluation forward, or the program of its proof, for batches of any size: no
factorisation, no complex number and no unused parameter is left. ONNX is one file with metadata; weights that do not
fit into it go to a second file, named by their hash. The torch.export format is a .pt2 archive with the metadata as a
JSON file inside it (`extra_files`). The metadata is enough to turn logits into a radius (docs/export.md).
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
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram

from bronet.__about__ import __version__
from bronet.errors import BronetError
from bronet.graph.network import ProvedNetwork
from bronet.layers import frozen
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
_TRACED_IMAGES = 2  # at least two, because torch.export treats a dimension of one as a constant
_ONLY_CHECKS = torch.ops.aten._assert_tensor_metadata.default


class _Forward(nn.Module):
    """A function hidden from the tracer, so that only the parameters it uses become constants of the graph."""

    def __init__(self, logits: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._hidden = (logits,)

    def forward(self, images: Tensor) -> Tensor:
        return self._hidden[0](images)


@torch.no_grad()
def proved_program(network: ProvedNetwork) -> ExportedProgram:
    """Return the float64 program of a proof as a graph for any number of images: its operations, on its numbers."""
    return _folded(
        lambda images: network.values(images)[-1], torch.rand(_TRACED_IMAGES, *network.image_shape, dtype=torch.float64)
    )


@torch.no_grad()
def frozen_program(model: nn.Module, image_shape: tuple[int, ...]) -> ExportedProgram:
    """Return the forward of a model in evaluation mode as a graph for any number of images, in its weights' dtype.

    Guaranteed: the same operations on the same numbers as the model's forward inside `frozen(model, portable=True)`, on
    the same device.
    """
    parameter = next(model.parameters())
    images = torch.rand(_TRACED_IMAGES, *image_shape, device=parameter.device, dtype=parameter.dtype)
    with frozen(model, portable=True):
        model(images)  # derives the weights, and fills the caches of what they are multiplied with
        return _folded(model, images)


def _folded(logits: Callable[[Tensor], Tensor], images: Tensor) -> ExportedProgram:
    graph = _traced(_Forward(logits), images).module()
    assert isinstance(graph, fx.GraphModule)
    fold_constants(graph)
    return _traced(graph, images)


def _traced(module: nn.Module, images: Tensor) -> ExportedProgram:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch.export warns of parts of torch
            return torch.export.export(module, (images,), dynamic_shapes=({0: Dim("batch")},), strict=False)
    except (RuntimeError, ValueError, TypeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BronetError(f"the model's forward must be traceable by torch.export, which says: {reason}") from error


def fold_constants(graph_module: fx.GraphModule) -> None:
    """Compute whatever does not depend on the input, keep the results as buffers, and drop run-time checks.

    A view of a constant, such as its transpose, stays an operation, because as a buffer it would be a second copy.
    Stack traces are dropped, because they contain paths of this machine.
    """
    graph, known = graph_module.graph, dict[fx.Node, Tensor]()
    for node in list(graph.nodes):
        node.meta.pop("stack_trace", None)
        if node.op == "get_attr":
            constant = getattr(graph_module, str(node.target))
            if isinstance(constant, Tensor):
                known[node] = constant.detach().clone(memory_format=torch.contiguous_format)
                setattr(graph_module, str(node.target), known[node])  # whole and in order, for the file
        elif node.op == "call_module" or node.target is _ONLY_CHECKS:
            graph.erase_node(node)
        elif node.op == "call_function" and node.all_input_nodes and all(n in known for n in node.all_input_nodes):
            arguments, options = fx.node.map_arg((node.args, node.kwargs), lambda n: known[n])
            assert callable(node.target)
            value = node.target(*arguments, **options)
            if isinstance(value, Tensor):
                known[node] = value
    stored = {value.untyped_storage().data_ptr() for node, value in known.items() if node.op == "get_attr"}
    for node, value in known.items():
        is_view = value.untyped_storage().data_ptr() in stored
        if node.op == "call_function" and not is_view and any(user not in known for user in node.users):
            name = f"folded_{node.name}"
            graph_module.register_buffer(name, value.contiguous())
            with graph.inserting_before(node):
                folded = graph.get_attr(name)
            node.replace_all_uses_with(folded)
    graph.eliminate_dead_code()
    graph_module.delete_all_unused_submodules()
    graph_module.recompile()


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


def write_program(path: Path, format: Format, program: ExportedProgram, facts: ExportFacts, *, weights: Path) -> Runner:
    """Write the program and its facts to `path` and return the file as a function of images.

    Weights too large for one file go to `weights`, in the same folder.
    """
    if format is Format.ONNX:
        return _write_onnx(path, program, facts, weights)
    archive = io.BytesIO()  # torch's own writer would end the process on a full disk
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch.export warns of parts of torch
        torch.export.save(program, archive, extra_files={FACTS_FILE: json.dumps(facts.entries(), indent=2)})
        path.write_bytes(archive.getbuffer())
        with path.open("rb") as file:
            return torch.export.load(file).module()


def _write_onnx(path: Path, program: ExportedProgram, facts: ExportFacts, weights: Path) -> Runner:
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
