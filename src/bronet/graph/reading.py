"""A model read as a graph: what its forward does to a batch, operation by operation, each with its proved map.

Read by torch.fx in evaluation mode, with Lipschitz layers and torch's own modules as single operations. A copy of
the model in float64 runs along on two random images: it shows shapes, folds constants (a learned scalar is one), and
each of torch's operations must give there what its proved map gives. What is not understood has no bound.
"""

import copy
import operator
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate

from bronet.errors import BronetError
from bronet.graph import maps
from bronet.graph.constants import constants_of
from bronet.graph.faithful import UnreadableError, evaluating, require_faithful
from bronet.graph.operands import Input, NoRuleError, Output
from bronet.graph.recorder import Graph, Recorder
from bronet.graph.rules import FUNCTIONS, MODULES
from bronet.graph.tracing import first_line, is_single, kind_of, require_no_sharing, traced
from bronet.graph.values import (
    SAMPLE,
    Activation,
    agree,
    as_input,
    as_sample,
    asks_for_size,
    attribute_of,
    flat,
    looked_up,
    method_of,
    part_of,
    sizes_of,
)
from bronet.layers.activation import Block
from bronet.layers.base import LipschitzLayer
from bronet.proof.proved_map import ProvedMap

# A proved map may differ from the operation by rounding, of which the weights' own precision is the coarsest.
_AGREEMENT = 2.0**10
_FLOAT64_AGREEMENT = 2.0**-30
_SIZES = ("size", "dim", "ndim", "shape")
_PARTS = (torch.chunk, torch.split, "chunk", "split", torch.unbind, "unbind", torch.tensor_split)


@torch.no_grad()
def read(model: nn.Module, shape: tuple[int, ...]) -> Graph:
    """Return the graph of a model for images of this shape, in evaluation mode; the model is not changed.

    Raises for what a graph could not show (hooks and the like) and where the forward cannot be followed at all. An
    operation without a bound is part of the graph, with an infinite constant.
    """
    require_faithful(model)
    with evaluating(model):
        twin = _copied(model)
        if is_single(model) or isinstance(model, Block):
            model, twin = (nn.Sequential(OrderedDict([(kind_of(m).__name__, m)])) for m in (model, twin))
        return _Reading(model.eval(), twin.eval(), shape).graph()


def _copied(model: nn.Module) -> nn.Module:
    """Return a copy of a model in float64."""
    try:
        return copy.deepcopy(model).double()
    except (RuntimeError, TypeError) as error:
        name = type(model).__name__
        raise UnreadableError(f"{name} must be a model that can be copied, but: {first_line(error)}") from None


class _Reading(Recorder):
    """The state of reading one model: values so far, operations so far."""

    def __init__(self, model: nn.Module, twin: nn.Module, shape: tuple[int, ...]) -> None:
        self.model, self.twin = model, twin
        tensors = (*model.parameters(), *model.buffers())
        device = tensors[0].device if tensors else torch.device("cpu")
        coarsest = max((torch.finfo(t.dtype).eps for t in tensors if t.is_floating_point()), default=2.0**-23)
        self.tolerance = _AGREEMENT * coarsest
        drawn = torch.rand(SAMPLE, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        self.images = drawn.to(device)
        super().__init__()
        self.layers: list[tuple[str, Tensor, Tensor]] = []

    def graph(self) -> Graph:
        """Follow the forward from the images to what it returns."""
        trace = traced(self.twin)
        require_no_sharing(trace, self.twin)
        values: dict[fx.Node, Any] = {}
        for node in trace.nodes:
            self.current = node
            values[node] = self._value(node, values)
        result = values[node]
        if not isinstance(result, Activation):
            got = type(result).__name__
            raise UnreadableError(
                f"{type(self.model).__name__} must return one tensor that depends on its images, got {got}"
            )
        kept, order = self.reached(result.value)
        complete = all(operation.known for operation in kept)
        constants = constants_of([operation.node for operation in kept], order) if complete else None
        if complete:
            self._compare(result.sample)
        return Graph(tuple(kept), constants, self.images.device)

    def _compare(self, output: Tensor) -> None:
        """Raise where the graph gives something else than the model itself, in float64, for two random images."""
        try:
            expected = self.twin(self.images.clone())
        except (RuntimeError, TypeError):  # a forward that names a precision
            dtype = next((t.dtype for t in self.model.parameters() if t.is_floating_point()), torch.float32)
            expected = self.model(self.images.to(dtype))
        if isinstance(expected, Tensor) and agree(output, expected.double(), self.tolerance):
            return
        wrong = (p for p, x, y in self.layers if not agree(y, self.twin.get_submodule(p)(x), self.tolerance))
        name = next(wrong, type(self.model).__name__)
        raise UnreadableError(
            f"{name} must compute what is proved of it, but on a random image the two differ by more than rounding; "
            "a certificate would not be about the model"
        )

    def _value(self, node: fx.Node, values: dict[fx.Node, Any]) -> Any:  # noqa: PLR0911 -- one for each kind
        """Return what a node of the trace is: an activation, a constant, or a sequence of those."""
        args: Any = map_aggregate(node.args, lambda a: looked_up(a, values))
        settings: Any = map_aggregate(node.kwargs, lambda a: looked_up(a, values))
        if node.op == "placeholder":
            return self._placeholder(node, args, first=not values)
        if node.op == "output":
            return args[0]
        if node.op == "get_attr":
            return attribute_of(self.twin, str(node.target))
        if node.op == "call_module":
            return self._module(str(node.target), args, settings)
        if node.target is operator.getitem and isinstance(args[0], (tuple, list)):
            return args[0][args[1]]
        if not any(isinstance(a, Activation) for a in flat((args, settings))):
            return self._constant(node, args, settings)
        return self._function(node, args, settings)

    def _placeholder(self, node: fx.Node, default: Sequence[Any], *, first: bool) -> Any:
        if first:
            return Activation(0, self.images)
        if not default:
            name = type(self.model).__name__
            raise UnreadableError(f"forward of {name} must take one tensor, got also {node.target} without a default")
        return default[0]

    def _constant(self, node: fx.Node, args: Any, settings: Any) -> Any:
        """Fold what does not depend on the images, in float64; tuples of activations are taken apart here as well."""
        if node.op == "call_method" and str(node.target).endswith("_") and not str(node.target).endswith("__"):
            raise UnreadableError(
                f"{self.where()} must not change what it is called on; write it without the underscore"
            )
        try:
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **settings)
            return node.target(*args, **settings)  # type: ignore[operator]
        except (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError) as error:
            raise UnreadableError(f"{self.where()} must be a constant, but: {first_line(error)}") from None

    # Operations with activations.

    def _module(self, path: str, args: Sequence[Any], settings: dict[str, Any]) -> Any:
        module, twin = self.model.get_submodule(path), self.twin.get_submodule(path)
        if len(args) != 1 or settings or not isinstance(args[0], Activation):
            sample = self.run(path, twin, *map_aggregate(tuple(args), as_sample), **map_aggregate(settings, as_sample))
            inputs = [a for a in flat((args, settings)) if isinstance(a, Activation)]
            return self.unknown(path, kind_of(module).__name__, inputs, sample, "takes other than one tensor", module)
        x: Activation = args[0]
        if isinstance(module, Block):
            for name, part in module.named_children():
                x = self._layer(f"{path}.{name}", part, x)
            return x
        if isinstance(module, LipschitzLayer):
            return self._layer(path, module, x)
        result = self.run(path, twin, x.sample)
        kind = kind_of(module)
        rule = MODULES.get(kind)
        if rule is None:
            return self.unknown(path, kind.__name__, [x], result, "no bound is known for this kind", module)
        return self._ruled(path, kind.__name__, [x], result, lambda out: rule(twin, out, Input(x.shape)), module=module)

    def _layer(self, path: str, layer: nn.Module, x: Activation) -> Activation:
        assert isinstance(layer, LipschitzLayer)
        proved = layer.proved(x.shape)
        computed = self.tried(path, proved, [x])
        self.layers.append((path, x.sample, computed))
        return self.added(path, type(layer).__name__, [x], proved, computed, layer)

    def _function(self, node: fx.Node, args: Any, settings: Any) -> Any:
        """Return what a function or a method gives, by its rule."""
        name = self.name_of(node)
        if asks_for_size(node):
            return sizes_of(node, args)
        call = method_of(str(node.target)) if node.op == "call_method" else node.target
        inputs = [a for a in flat((args, settings)) if isinstance(a, Activation)]
        result = self.run(name, call, *map_aggregate(args, as_sample), **map_aggregate(settings, as_sample))
        if node.target in _PARTS and isinstance(result, (tuple, list)):
            return self._parts(name, node, args, settings, result)
        if isinstance(result, (tuple, list)) or not isinstance(result, Tensor):
            return self.unknown(name, "function", inputs, result, "gives other than one tensor")
        rule = FUNCTIONS.get(node.target)
        if rule is None:
            return self.unknown(name, "function", inputs, result, "no bound is known for this function")
        own = map_aggregate(args, as_input)
        named = {key: map_aggregate(value, as_input) for key, value in settings.items() if key != "inplace"}
        is_last = any(user.op == "output" for user in node.users)
        return self._ruled(name, "function", inputs, result, lambda out: rule(out, *own, **named), is_last=is_last)

    def _parts(self, name: str, node: fx.Node, args: Any, settings: Any, results: Sequence[Tensor]) -> Any:
        """Return the parts of a chunk or a split, each of which is a selection of its own."""
        x = args[0]
        dim = settings.get("dim", args[-1] if len(args) > (1 if "unbind" in name else 2) else 0)
        call = method_of(str(node.target)) if node.op == "call_method" else node.target
        rest, named = tuple(args[1:]), dict(settings)
        parts = []
        for number, result in enumerate(results):
            apply = part_of(call, rest, named, number)
            if not isinstance(dim, int) or dim % (len(x.shape) + 1) == 0 or not isinstance(x, Activation):
                parts.append(self.unknown(name, "function", [x], result, "the images of a batch must stay apart"))
            else:
                proved = maps.copied(apply, tuple(result.shape[1:]), x.shape)
                parts.append(self.added(name, "function", [x], proved, self.tried(name, proved, [x])))
        return tuple(parts)

    def _ruled(
        self,
        name: str,
        kind: str,
        inputs: list[Activation],
        result: Any,
        rule: Callable[[Output], ProvedMap],
        *,
        module: nn.Module | None = None,
        is_last: bool | None = None,
    ) -> Any:
        """Return the value of an operation by its rule, which must give on the sample what the operation gives."""
        if is_last is None:
            is_last = any(user.op == "output" for user in self.current.users)
        if not isinstance(result, Tensor) or result.ndim < 1 or result.shape[0] != SAMPLE:
            return self.unknown(name, kind, inputs, result, "does not give one result for each image", module)
        try:
            proved = rule(Output(tuple(result.shape[1:]), is_last))
        except NoRuleError as error:
            return self.unknown(name, kind, inputs, result, str(error), module)
        except BronetError:
            raise
        except (TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            reason = f"not with these arguments: {first_line(error)}"
            return self.unknown(name, kind, inputs, result, reason, module)
        computed = self.tried(name, proved, inputs)
        if not agree(computed, result, _FLOAT64_AGREEMENT if result.dtype == torch.float64 else self.tolerance):
            return self.unknown(name, kind, inputs, result, "computes something else than its type says", module)
        return self.added(name, kind, inputs, proved, computed, module)
