"""A model read as a graph: what its forward does to a batch, operation by operation, each with its proved map.

A copy of the model in float64 runs along on two random images: it shows shapes, folds constants (a learned scalar is
one), and each of torch's operations must give there what its proved map gives. What is not understood has no bound.
"""

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from bronet.errors import BronetError
from bronet.graph import linear, moves, nonlinear  # noqa: F401  (they enter their rules)
from bronet.graph.moves import MOVES, entries_of
from bronet.graph.operations import RULES, Graph, NoRuleError, Operation, Value
from bronet.graph.trace import (
    UnreadableError,
    copy_of,
    first_line,
    is_single,
    is_stale,
    kind_of,
    name_of,
    traced,
    where,
)
from bronet.layers.activation import Block
from bronet.proof.proved_map import ProvedMap, require_sealed

_SAMPLE = 2
# A proved map may differ from the operation by rounding, of which the weights' own precision is the coarsest.
_AGREEMENT = 2.0**10
_FLOAT64_AGREEMENT = 2.0**-30


@torch.no_grad()
def read(model: nn.Module, shape: tuple[int, ...]) -> Graph:
    """Return the graph of a model for images of this shape, in evaluation mode; the model is not changed.

    Raises for what a graph could not show (hooks and the like) and where the forward cannot be followed at all. An
    operation without a bound is part of the graph, with an infinite constant.
    """
    return _Reading(model, shape).result()


class _Reading:
    """The operations of a trace, in their order; of every node, which value it is and what that is by the proof."""

    def __init__(self, model: nn.Module, shape: tuple[int, ...]) -> None:
        self.model, self.twin = model, copy_of(model, double=True)
        tensors = (*model.parameters(), *model.buffers())
        coarsest = max((torch.finfo(t.dtype).eps for t in tensors if t.is_floating_point()), default=2.0**-23)
        self.tolerance = _AGREEMENT * coarsest
        drawn = torch.rand(_SAMPLE, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        self.images = drawn.to(tensors[0].device if tensors else "cpu")
        self.operations: list[Operation] = []
        self.values, self.samples = dict[fx.Node, int](), dict[fx.Node, Tensor]()
        self.layers = dict[fx.Node, list[tuple[str, str, ProvedMap]]]()

    def result(self) -> Graph:
        """Follow the forward from the images to what it returns, and keep what that depends on."""
        trace = traced(self.twin, self.images.clone(), self._layer)
        (returned,) = trace.output_node().args
        self.output, note = _before_log_softmax(returned)
        if not _is_activation(self.output):
            name, got = type(self.model).__name__, "several" if isinstance(returned, (tuple, list)) else "a constant"
            raise UnreadableError(f"{name} must return one tensor that depends on its images, got {got}")
        trace.output_node().args = (self.output,)
        trace.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
        first, *nodes, _ = trace.nodes
        self.values[first], self.samples[first] = 0, self.images
        for node in nodes:
            if node.meta["of_images"]:
                self.values[node] = self._read(node)
        if all(operation.proved.known for operation in self.operations):
            output = self.samples[self.output]
            self._compare(output.log_softmax(1) if note else output)
        return Graph(tuple(self.operations), self.images.device, note)

    def _compare(self, output: Tensor) -> None:
        """Raise where the graph gives something else than the model itself, in float64, for two random images.

        The model is given a third one beside them, which must not influence them.
        """
        wrong = type(self.model).__name__
        try:
            expected = self.twin(torch.cat([self.images, self.images[:1]]))
        except BronetError:
            raise
        except Exception as error:  # whatever the model's own code raises
            says = f"with {_SAMPLE + 1} it says: {first_line(error)}"
            raise UnreadableError(f"{wrong} must take any number of images, but {says}") from None
        if isinstance(expected, Tensor) and _agree(output, expected[:_SAMPLE].double(), self.tolerance):
            return
        for node in self.layers:
            twin, x = self.twin.get_submodule(str(node.target)), self.samples[node.all_input_nodes[0]]
            if not _agree(self.samples[node], twin(x), self.tolerance):
                wrong = str(node.target)
                break
        raise UnreadableError(
            f"{wrong} must compute what is proved of it, but on a random image the two differ by more than rounding; "
            "a certificate would not be about the model"
        )

    def _layer(self, node: fx.Node, module: nn.Module, x: Tensor) -> Tensor:
        """Return what a Lipschitz layer gives by its proof, which is kept; a block's parts are layers of their own."""
        path = str(node.target)
        own: Any = self.model if is_single(self.model) else self.model.get_submodule(path)
        parts: dict[str, Any] = {path: own}
        if isinstance(own, Block):
            parts = {f"{path}.{name}": part for name, part in own.named_children()}
        found = self.layers[node] = []
        for name, part in parts.items():
            proved = part.proved(tuple(x.shape[1:]))
            found.append((name, type(part).__name__, proved))
            x = _tried(name, proved, [x])
        return x

    def _read(self, node: fx.Node) -> int:
        """Keep an operation and return its value; parts of a value that no rule gives are that value."""
        source, result = node.all_input_nodes[0], node.meta["value"]
        if isinstance(result, Tensor):
            self.samples[node] = result
        elif not isinstance(result, (tuple, list)):
            got = f"got {type(result).__name__}: no control may depend on activations"
            raise UnreadableError(f"{where(node)} must give a tensor, {got}")
        if node in self.layers:
            value = self.values[source]
            for path, kind, proved in self.layers[node]:
                value = self._keep(Operation(path, proved, (value,), kind, node.meta["place"]))
            return value
        is_part = node.target is operator.getitem and not isinstance(source.meta["value"], Tensor)
        if node.target in moves.PARTS or (is_part and source.target not in moves.PARTS):
            return self.values[source]
        inputs, proved = self._proved(node, source if is_part else node)
        shapes, entries = [_shape(x) for x in inputs], None
        if proved.remark == MOVES and len(shapes) == 1 and math.prod(proved.output_shape) < math.prod(shapes[0]):
            entries = entries_of(proved.apply, shapes[0])
        values = tuple(self.values[x] for x in inputs)
        return self._keep(Operation(name_of(node), proved, values, kind_of(node), node.meta["place"], entries))

    def _keep(self, operation: Operation) -> int:
        self.operations.append(operation)
        return len(self.operations)

    def _proved(self, node: fx.Node, called: fx.Node) -> tuple[list[fx.Node], ProvedMap]:
        """Return the activations that an operation takes, and its proved map by its rule or without a bound.

        The map must give on the sample what the operation gives. Of parts of a value, `called` gives all of them.
        """
        inputs: list[fx.Node] = []

        def given(argument: fx.Node) -> Any:
            if not argument.meta["of_images"]:
                return argument.meta["value"]
            inputs.append(argument)
            return Value(_shape(argument))

        named = {key: value for key, value in called.kwargs.items() if key != "inplace"}
        args: Any = map_arg(called.args, given)
        settings, result = map_arg(named, given), node.meta["value"]
        try:
            if node.op == "call_module":
                raise NoRuleError(_why_closed(self.twin.get_submodule(str(node.target))))
            if not isinstance(result, Tensor) or result.ndim < 1 or result.shape[0] != _SAMPLE:
                raise NoRuleError("does not give one result for each image")
            out = Value(tuple(result.shape[1:]), is_last=node is self.output)
            if called is not node:
                number: Any = node.args[1]
                proved = moves.part(out, args[0], number, called.target, *args[1:], **settings)
            elif node.target in RULES:
                proved = RULES[node.target](out, *args, **settings)
            else:
                raise NoRuleError("no bound is known for this function")
            self.samples[node] = _tried(name_of(node), proved, [self.samples[x] for x in inputs])
            tolerance = _FLOAT64_AGREEMENT if result.dtype == torch.float64 else self.tolerance
            if is_stale(node) or _agree(self.samples[node], result, tolerance):
                return inputs, proved
            reason = "computes something else than its type says"
        except NoRuleError as error:
            reason = str(error)
        except (TypeError, ValueError, AttributeError, IndexError, RuntimeError, KeyError) as error:
            if isinstance(error, BronetError):
                raise
            reason = f"not with these arguments: {first_line(error)}"
        return inputs, ProvedMap(_refused, _shape(node), math.inf, math.inf, remark=reason)


def _why_closed(module: nn.Module) -> str:
    """Return why a module whose forward is not followed has no bound."""
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        return f"recurrence {linear.PRODUCT} (gates by states); missing is a recurrent layer with bounded gates"
    return f"attention {linear.PRODUCT}; missing is an attention with bounded scores and values"


def _before_log_softmax(output: Any) -> tuple[Any, str]:
    """Return what gives the logits, with a note where a log_softmax over them is left out."""
    if not isinstance(output, fx.Node) or RULES.get(output.target) is not linear.log_softmax:
        return output, ""
    logits, dim = output.all_input_nodes[0], output.kwargs.get("dim", output.args[1] if len(output.args) > 1 else None)
    if logits.meta["value"].ndim != 2 or dim not in (1, -1, None):
        return output, ""
    return logits, f"{name_of(output)} is left out: it changes neither the largest logit nor any difference of two"


def _shape(node: fx.Node) -> tuple[int, ...]:
    """Return the shape of one image's part of a value; of several values that of the first."""
    value = node.meta["value"]
    while not isinstance(value, Tensor):
        value = value[0]
    return tuple(value.shape[1:])


def _is_activation(output: object) -> bool:
    return isinstance(output, fx.Node) and output.meta["of_images"] and isinstance(output.meta["value"], Tensor)


def _tried(name: str, proved: ProvedMap, inputs: Sequence[Tensor]) -> Tensor:
    """Return what a map makes of the sample; raise unless it is sealed and of the shape that its proof is about.

    A shift that was broadcast over channels, say, would stretch distances by more than its proof says.
    """
    require_sealed(proved.apply, name)
    result = proved.apply(*inputs)
    if (got := tuple(result.shape[1:])) != proved.output_shape:
        raise UnreadableError(f"{name} must give activations of shape {proved.output_shape}, got {got}")
    return result


def _agree(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Whether two results are of one shape and the same but for rounding, relative to the largest number."""
    if a.shape != b.shape:
        return False
    finite = bool(torch.isfinite(a).all()) and bool(torch.isfinite(b).all())
    largest = float(torch.maximum(a.abs().max(), b.abs().max())) if a.numel() else 0.0
    return not finite or a.numel() == 0 or float((a - b).abs().max()) <= tolerance * largest


def _refused(*_: Tensor) -> Tensor:
    """What an operation without a bound has in place of a proved map."""
    raise UnreadableError("an operation without a bound is no part of a proved program")
