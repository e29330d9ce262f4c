"""The values while a model is read: activations with what they are for the sample, constants, and sizes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from bronet.graph import maps
from bronet.graph.faithful import UnreadableError
from bronet.graph.operands import Batch, Input

SAMPLE = 2
"""Random images that run along."""


@dataclass(frozen=True, eq=False)
class Activation:
    """A value of the graph, and what it is for the sample."""

    value: int
    sample: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.sample.shape[1:])


def agree(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Whether two results are of one shape and the same but for rounding, relative to the largest number."""
    if a.shape != b.shape:
        return False
    finite = bool(torch.isfinite(a).all()) and bool(torch.isfinite(b).all())
    largest = float(torch.maximum(a.abs().max(), b.abs().max())) if a.numel() else 0.0
    return not finite or a.numel() == 0 or float((a - b).abs().max()) <= tolerance * largest


def part_of(call: Any, rest: tuple[Any, ...], settings: dict[str, Any], number: int) -> maps.Apply:
    """Return the function that gives one of several parts."""
    return lambda x: call(x, *rest, **settings)[number]


def method_of(name: str) -> Callable[..., Any]:
    """Return a method of tensors."""
    return getattr(Tensor, name)  # type: ignore[no-any-return]


def refused(*_: Tensor) -> Tensor:
    """What an operation without a bound has in place of a proved map."""
    raise UnreadableError("an operation without a bound is no part of a proved program")


def asks_for_size(node: fx.Node) -> bool:
    """Whether an operation asks for a size of an activation."""
    if node.op == "call_method":
        return node.target in ("size", "dim")
    return node.target is getattr and node.args[1] in ("shape", "ndim")


def sizes_of(node: fx.Node, args: Sequence[Any]) -> Any:
    """Return sizes of a batch of activations, the number of images as one that no other number equals."""
    x: Activation = args[0]
    if node.target == "dim" or (node.target is getattr and args[1] == "ndim"):
        return x.sample.ndim
    sizes = (Batch(SAMPLE), *x.shape)
    return sizes[args[1]] if node.op == "call_method" and len(args) > 1 else sizes


def looked_up(argument: Any, values: dict[fx.Node, Any]) -> Any:
    """Return the value of an argument of the trace."""
    return values[argument] if isinstance(argument, fx.Node) else argument


def as_input(argument: Any) -> Any:
    """Return what a rule is given for an argument."""
    return Input(argument.shape) if isinstance(argument, Activation) else argument


def as_sample(argument: Any) -> Any:
    """Return what an operation of the model itself is given for an argument."""
    if isinstance(argument, Batch):
        return int(argument)
    return argument.sample if isinstance(argument, Activation) else argument


def flat(argument: Any) -> Iterator[Any]:
    """Yield everything in nested tuples, lists, dicts and slices."""
    if isinstance(argument, (tuple, list)):
        for part in argument:
            yield from flat(part)
    elif isinstance(argument, dict):
        yield from flat(list(argument.values()))
    elif isinstance(argument, slice):
        yield from (argument.start, argument.stop, argument.step)
    else:
        yield argument


def attribute_of(root: nn.Module, target: str) -> Any:
    """Return an attribute of the model, a tensor as a copy in float64."""
    path, _, name = target.rpartition(".")
    value = getattr(root.get_submodule(path), name)
    if isinstance(value, Tensor):
        return value.detach().double().clone() if value.is_floating_point() else value.detach().clone()
    return value
