"""Lipschitz constants as training sees them, over the graph of a model's forward: differentiable, and no bound.

A layer that is used twice counts twice. The forward is traced once for a model and its parts; no images are needed.
"""

import operator
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate

from bronet.errors import BronetError
from bronet.graph import arithmetic, moves
from bronet.graph.rules import targets_of
from bronet.graph.tracing import is_single, traced
from bronet.layers.activation import Block
from bronet.layers.base import LipschitzLayer

Unit = Block | LipschitzLayer

_TRACES: WeakKeyDictionary[nn.Module, tuple[object, fx.Graph]] = WeakKeyDictionary()
_SUMS = targets_of(arithmetic.add, arithmetic.subtract)
_FACTORS = targets_of(arithmetic.multiply)
_DIVISIONS = targets_of(arithmetic.divide)
_JOINED = targets_of(moves.cat, moves.stack)
_KEEPING = targets_of(
    moves.flatten,
    moves.reshaped,
    moves.permute,
    moves.transpose,
    moves.by_shape,
    moves.kept,
    moves.item,
    moves.converted,
) | {"chunk", "split", torch.chunk, torch.split, "size", "relu", torch.relu, torch.nn.functional.relu}


def units_of(module: nn.Module) -> Iterator[Unit]:
    """Yield a model's blocks, and its Lipschitz layers outside of blocks, in the order of registration."""
    if isinstance(module, (Block, LipschitzLayer)):
        yield module
        return
    for part in module.children():
        yield from units_of(part)


def layers_of(module: nn.Module, path: str = "") -> Iterator[tuple[str, LipschitzLayer]]:
    """Yield every Lipschitz layer that is no part of another, with its path, in the order of registration."""
    if isinstance(module, LipschitzLayer):
        yield path, module
        return
    for name, part in module.named_children():
        yield from layers_of(part, f"{path}.{name}" if path else name)


def estimate(model: nn.Module, head: nn.Module) -> Tensor:
    """Return the estimated constant of what comes before the head."""
    parameter = next(head.parameters())
    one = torch.ones((), device=parameter.device, dtype=parameter.dtype)
    values: dict[fx.Node, Any] = {}
    for node in _trace(model).nodes:
        args = map_aggregate(node.args, lambda a: values[a] if isinstance(a, fx.Node) else a)
        if node.op == "placeholder":
            values[node] = _Constant(one)
        elif node.op == "get_attr":
            values[node] = _attribute(model, str(node.target))
        elif node.op == "call_module":
            module = model.get_submodule(str(node.target))
            if module is head:
                return args[0].value
            values[node] = _Constant(args[0].value * _of_module(module, str(node.target)))
        elif node.op != "output":
            values[node] = _of_function(node, args)
    raise BronetError(f"the forward of {type(model).__name__} must end with its head to be trained")


class _Constant:
    """The constant of an activation, apart from the numbers that multiply one."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


def _of_module(module: nn.Module, path: str) -> Tensor | float:
    if isinstance(module, (Block, LipschitzLayer)):
        return module.lipschitz_estimate()
    if is_single(module) and not any(True for _ in module.parameters()):
        return 1.0
    raise BronetError(f"{path} must be a Lipschitz layer to be trained with its constant, got {type(module).__name__}")


def _of_function(node: fx.Node, args: Any) -> Any:  # noqa: PLR0911 -- one for each kind
    given = [a for a in _leaves(args) if isinstance(a, _Constant)]
    if not given:
        target = getattr(Tensor, str(node.target)) if node.op == "call_method" else node.target
        return target(*args, **node.kwargs)  # type: ignore[operator]
    numbers = [a for a in _leaves(args) if isinstance(a, (Tensor, float, int))]
    if node.target is operator.getitem and not isinstance(args[0], _Constant):
        return args[0][args[1]]
    if node.target in _JOINED:
        return _Constant(torch.stack([x.value for x in given]).square().sum().sqrt())
    if node.target in _SUMS:
        return _Constant(torch.stack([x.value for x in given]).sum()) if len(given) > 1 else given[0]
    if node.target in _FACTORS and len(given) == 1:
        return _Constant(given[0].value * torch.as_tensor(numbers[0]).abs().max())
    if node.target in _DIVISIONS and len(given) == 1:
        return _Constant(given[0].value / torch.as_tensor(numbers[0]).abs().min())
    if node.target in _KEEPING or node.target is getattr:
        return given[0]
    raise BronetError(f"{node.target} at {node.meta.get('place')} has no constant for training; see bronet.check")


def _leaves(argument: Any) -> Iterator[Any]:
    if isinstance(argument, (tuple, list)):
        for part in argument:
            yield from _leaves(part)
    else:
        yield argument


def _attribute(model: nn.Module, target: str) -> Any:
    path, _, name = target.rpartition(".")
    return getattr(model.get_submodule(path), name)


def _trace(model: nn.Module) -> fx.Graph:
    """Return the trace of a model, made anew when a part of it is another."""
    parts = tuple((path, id(part)) for path, part in model.named_modules())
    known = _TRACES.get(model)
    if known is None or known[0] != parts:
        known = _TRACES[model] = (parts, traced(model))
    return known[1]
