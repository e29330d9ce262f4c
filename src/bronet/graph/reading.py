"""A model read as a graph: what its forward does to a batch, operation by operation, each with its proved map.

Read by torch.fx in evaluation mode, with Lipschitz layers and torch's own modules as single operations. A copy of
the model in float64 runs along on two random images: it shows shapes, folds constants (a learned scalar is one), and
each of torch's operations must give there what its proved map gives. What is not understood has no bound.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.node import map_aggregate

from bronet.errors import BronetError
from bronet.graph import linear, moves, nonlinear
from bronet.graph.operations import (
    MOVES,
    UNKNOWN,
    Batch,
    Graph,
    Input,
    NoRuleError,
    Operation,
    Output,
    axis_of,
    entries_of,
)
from bronet.graph.trace import (
    Symbol,
    UnreadableError,
    Walk,
    evaluating,
    first_line,
    is_single,
    kind_of,
    name_of,
    require_faithful,
    symbols_in,
    traced,
    where,
)
from bronet.layers.activation import Block
from bronet.layers.base import LipschitzLayer
from bronet.proof.proved_map import ProvedMap, require_sealed

FUNCTIONS = linear.FUNCTIONS | nonlinear.FUNCTIONS | moves.FUNCTIONS
MODULES = linear.MODULES | nonlinear.MODULES | moves.MODULES
_SAMPLE = 2
# A proved map may differ from the operation by rounding, of which the weights' own precision is the coarsest.
_AGREEMENT = 2.0**10
_FLOAT64_AGREEMENT = 2.0**-30


@dataclass(frozen=True, eq=False)
class _Activation(Symbol):
    """A value of the graph, and what it is for the sample."""

    value: int
    sample: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.sample.shape[1:])


@torch.no_grad()
def read(model: nn.Module, shape: tuple[int, ...]) -> Graph:
    """Return the graph of a model for images of this shape, in evaluation mode; the model is not changed.

    Raises for what a graph could not show (hooks and the like) and where the forward cannot be followed at all. An
    operation without a bound is part of the graph, with an infinite constant.
    """
    require_faithful(model)
    with evaluating(model):
        try:
            twin = copy.deepcopy(model).double()
        except (RuntimeError, TypeError) as error:
            name = type(model).__name__
            raise UnreadableError(f"{name} must be a model that can be copied, but: {first_line(error)}") from None
        if is_single(model):
            model, twin = (nn.Sequential(OrderedDict([(kind_of(m).__name__, m)])) for m in (model, twin))
        return _Reading(model.eval(), twin.eval(), shape).result()


class _Reading(Walk):
    """The walk of the trace that keeps every operation. The trace is the twin's: the model's copy in float64."""

    def __init__(self, model: nn.Module, twin: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__(twin, traced(twin))
        self.model, self.twin = model, twin
        tensors = (*model.parameters(), *model.buffers())
        device = tensors[0].device if tensors else torch.device("cpu")
        coarsest = max((torch.finfo(t.dtype).eps for t in tensors if t.is_floating_point()), default=2.0**-23)
        self.tolerance = _AGREEMENT * coarsest
        drawn = torch.rand(_SAMPLE, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        self.images = drawn.to(device)
        self.operations: list[Operation] = []
        self.selected: dict[int, Tensor] = {}
        self.layers: list[tuple[str, Tensor, Tensor]] = []

    def result(self) -> Graph:
        """Follow the forward from the images to what it returns, and keep what that depends on."""
        result = self.run(_Activation(0, self.images))
        if not isinstance(result, _Activation):
            name, got = type(self.model).__name__, type(result).__name__
            raise UnreadableError(f"{name} must return one tensor that depends on its images, got {got}")
        needed, waiting = {0}, [result.value]
        while waiting:
            value = waiting.pop()
            if value not in needed:
                needed.add(value)
                waiting += self.operations[value - 1].inputs
        number = {value: position for position, value in enumerate(sorted(needed))}
        found = (self.operations[value - 1] for value in sorted(needed - {0}))
        kept = [replace(operation, inputs=tuple(number[i] for i in operation.inputs)) for operation in found]
        if all(operation.proved.known for operation in kept):
            self._compare(result.sample)
        selected = {number[value]: entries for value, entries in self.selected.items() if value in needed}
        return Graph(tuple(kept), selected, self.images.device)

    def _compare(self, output: Tensor) -> None:
        """Raise where the graph gives something else than the model itself, in float64, for two random images."""
        try:
            expected = self.twin(self.images.clone())
        except (RuntimeError, TypeError):  # a forward that names a precision
            dtype = next((t.dtype for t in self.model.parameters() if t.is_floating_point()), torch.float32)
            expected = self.model(self.images.to(dtype))
        if isinstance(expected, Tensor) and _agree(output, expected.double(), self.tolerance):
            return
        wrong = (p for p, x, y in self.layers if not _agree(y, self.twin.get_submodule(p)(x), self.tolerance))
        raise UnreadableError(
            f"{next(wrong, type(self.model).__name__)} must compute what is proved of it, but on a random image the "
            "two differ by more than rounding; a certificate would not be about the model"
        )

    # What operations give: an activation, or sizes of one.

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().get_attr(target, args, kwargs)
        if not isinstance(value, Tensor):
            return value
        return value.detach().double().clone() if value.is_floating_point() else value.detach().clone()

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        module, twin, inputs = self.model.get_submodule(target), self.twin.get_submodule(target), symbols_in(args)
        kind = kind_of(module)
        self._name, self._kind = target, kind.__name__
        is_plain = len(args) == 1 and len(inputs) == 1 and inputs[0] is args[0] and not kwargs
        if isinstance(module, Block) and is_plain:
            for name, part in zip(("linear", "shift", "activation"), module.parts(), strict=True):
                inputs = [self._layer(f"{target}.{name}", part, inputs[0])]
            return inputs[0]
        if isinstance(module, LipschitzLayer) and is_plain:
            return self._layer(target, module, inputs[0])
        result = self._computed(twin, args, kwargs)
        if not is_plain:
            return self._unknown(symbols_in((args, kwargs)), result, "takes other than one tensor")
        if kind not in MODULES:
            return self._unknown(inputs, result, "no bound is known for this kind")
        return self._ruled(inputs, result, lambda out: MODULES[kind](twin, out, Input(inputs[0].shape)))

    def _layer(self, path: str, layer: LipschitzLayer, x: _Activation) -> _Activation:
        self._name, self._kind = path, type(layer).__name__
        proved = layer.proved(x.shape)
        computed = self._tried(proved, [x])
        self.layers.append((path, x.sample, computed))
        return self._added([x], proved, computed)

    def operation(self, call: Callable[..., Any], args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """Return what a function or a method gives, by its rule."""
        target, inputs = self.current.target, symbols_in((args, settings))
        self._name, self._kind = name_of(self.current), "function"
        if target in ("size", "dim") or (target is getattr and args[1] in ("shape", "ndim")):
            return _sizes(target, args)
        result = self._computed(call, args, settings)
        if target in moves.PARTS and isinstance(result, (tuple, list)) and inputs == [args[0]]:
            return self._parts(call, args, settings, result)
        if not isinstance(result, Tensor):
            return self._unknown(inputs, result, "gives other than one tensor")
        rule = FUNCTIONS.get(target)
        if rule is None:
            return self._unknown(inputs, result, "no bound is known for this function")
        given = map_aggregate(args, _as_input)
        named = map_aggregate({key: value for key, value in settings.items() if key != "inplace"}, _as_input)
        return self._ruled(inputs, result, lambda out: rule(out, *given, **named))  # type: ignore[misc]

    def _parts(
        self, call: Callable[..., Any], args: tuple[Any, ...], settings: dict[str, Any], results: Sequence[Tensor]
    ) -> tuple[_Activation, ...]:
        """Return the parts of a chunk or a split, each of which is a selection of its own."""
        x, rest, parts = args[0], args[1:], []
        counted = 0 if "unbind" in self._name else 1  # arguments before the dimension, which is the batch's by default
        dim = settings.get("dim", rest[counted] if len(rest) > counted else 0)
        for number, result in enumerate(results):

            def apply(x: Tensor, number: int = number) -> Tensor:
                return call(x, *rest, **settings)[number]

            def rule(out: Output, apply: Callable[..., Tensor] = apply) -> ProvedMap:
                axis_of(dim, Input(x.shape))
                return moves.copied(apply, out, Input(x.shape))

            parts.append(self._ruled([x], result, rule))
        return tuple(parts)

    def _computed(self, call: Callable[..., Any], args: Any, settings: Any) -> Any:
        """Return what an operation of the model's own makes of the sample, of which it gets a copy."""

        def given(argument: Any) -> Any:
            if isinstance(argument, Batch):
                return int(argument)
            return argument.sample.clone() if isinstance(argument, _Activation) else argument

        try:
            return call(*map_aggregate(args, given), **map_aggregate(settings, given))  # type: ignore[misc, arg-type]
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            what = f"activations of shape {', '.join(str(x.shape) for x in symbols_in(args))}"
            raise BronetError(f"{self._name} must take {what}, but it says: {first_line(error)}") from None

    def _ruled(self, inputs: list[_Activation], result: Any, rule: Callable[[Output], ProvedMap]) -> Any:
        """Return the value of an operation by its rule, which must give on the sample what the operation gives."""
        if not isinstance(result, Tensor) or result.ndim < 1 or result.shape[0] != _SAMPLE:
            return self._unknown(inputs, result, "does not give one result for each image")
        is_last = any(user.op == "output" for user in self.current.users)
        try:
            proved = rule(Output(tuple(result.shape[1:]), is_last))
        except NoRuleError as error:
            return self._unknown(inputs, result, str(error))
        except (TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            if isinstance(error, BronetError):
                raise
            return self._unknown(inputs, result, f"not with these arguments: {first_line(error)}")
        computed = self._tried(proved, inputs)
        if not _agree(computed, result, _FLOAT64_AGREEMENT if result.dtype == torch.float64 else self.tolerance):
            return self._unknown(inputs, result, "computes something else than its type says")
        return self._added(inputs, proved, computed)

    def _tried(self, proved: ProvedMap, inputs: Sequence[_Activation]) -> Tensor:
        """Return what a map makes of the sample; raise unless it is sealed and of the shape that its proof is about.

        A shift that was broadcast over channels, say, would stretch distances by more than its proof says.
        """
        require_sealed(proved.apply, self._name)
        result = proved.apply(*(x.sample for x in inputs))
        if (got := tuple(result.shape[1:])) != proved.output_shape:
            raise UnreadableError(f"{self._name} must give activations of shape {proved.output_shape}, got {got}")
        return result

    def _unknown(self, inputs: list[_Activation], result: Any, reason: str) -> Any:
        """Return the value of an operation without a bound; of several results, each is one."""
        if isinstance(result, (tuple, list)):
            return tuple(self._unknown(inputs, part, reason) for part in result)
        if not isinstance(result, Tensor):
            got = f"got {type(result).__name__}: no control may depend on activations"
            raise UnreadableError(f"{where(self.current)} must give a tensor, {got}")
        return self._added(
            inputs, ProvedMap(_refused, tuple(result.shape[1:]), UNKNOWN, UNKNOWN, remark=reason), result
        )

    def _added(self, inputs: Sequence[_Activation], proved: ProvedMap, sample: Tensor) -> _Activation:
        """Keep an operation and return its value; one that only selects entries is remembered as such."""
        place = str(self.current.meta.get("place", ""))
        self.operations.append(Operation(self._name, proved, tuple(x.value for x in inputs), self._kind, place))
        value = len(self.operations)
        if len(inputs) == 1 and proved.remark == MOVES and sample.numel() < inputs[0].sample.numel():
            entries = entries_of(proved.apply, inputs[0].shape)
            self.selected[value] = entries[entries >= 0]
        return _Activation(value, sample)


def _as_input(argument: Any) -> Any:
    return Input(argument.shape) if isinstance(argument, _Activation) else argument


def _sizes(target: Any, args: Sequence[Any]) -> Any:
    """Return sizes of a batch of activations, the number of images as one that no other number equals."""
    x: _Activation = args[0]
    sizes = (Batch(_SAMPLE), *x.shape)
    if target == "dim" or args[-1] == "ndim":
        return len(sizes)
    return sizes[args[1]] if target == "size" and len(args) > 1 else sizes


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
