"""A model as a graph of products, in which everything that does not depend on the images is a constant.

torch.export traces the model's evaluation forward, or the program of its proof, for batches of any size. The graph
contains no factorisation, no complex number and no unused parameter.
"""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram

from bronet.errors import BronetError
from bronet.graph.network import ProvedNetwork
from bronet.layers import frozen

# At least two, because torch.export treats a dimension of one as a constant.
_TRACED_IMAGES = 2
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
    """Return the evaluation forward of a model as a graph for any number of images, in the dtype of its weights.

    Guaranteed: the same operations on the same numbers as the model's forward inside `frozen(model, portable=True)`, on
    the same device.
    """
    parameter = next(model.parameters())
    images = torch.rand(_TRACED_IMAGES, *image_shape, device=parameter.device, dtype=parameter.dtype)
    was_training = model.training
    model.eval()
    try:
        with frozen(model, portable=True):
            model(images)  # derives the weights, and fills the caches of what they are multiplied with
            return _folded(model, images)
    finally:
        model.train(was_training)


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
