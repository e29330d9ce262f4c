"""Rules of operations that only move numbers within an image: reshapes, slices, concatenations, padding.

What an operation does to the numbers 1, 2, ... shows how often it copies each.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bronet.graph.operations import (
    RULES,
    Apply,
    BatchSize,
    NoRuleError,
    Rule,
    Shape,
    Value,
    axes_of,
    method_of,
    rule_of,
)
from bronet.proof.proved_map import Join, ProvedMap, exact, gamma, up

MOVES = "only moves numbers"


def moved(apply: Apply, out: Value) -> ProvedMap:
    """Return the map that puts the numbers of its input, each once, elsewhere."""
    return exact(apply, out.shape, MOVES)


def copied(apply: Apply, out: Value, input: Value) -> ProvedMap:
    """Return the map of an operation that selects entries, of which each may be there several times or not at all."""
    index = entries_of(apply, input.shape)
    times = int(index.bincount().max()) if len(index) else 0
    return ProvedMap(apply, out.shape, 1.0 if times <= 1 else up(math.sqrt(times)), remark=MOVES)


def entries_of(apply: Apply, source: Shape) -> Tensor:
    """Return which flat entries of its one input a map gives, each as often as it does; zeros that it adds are none."""
    numbers = torch.arange(1, math.prod(source) + 1, dtype=torch.float64).reshape(1, *source)
    found = apply(numbers).long().flatten() - 1
    return found[found >= 0]


@rule_of("contiguous", "clone", "detach")
def kept(out: Value, input: Value, *ignored: object, **settings: object) -> ProvedMap:
    """The same numbers: copies, memory formats, dropout in evaluation."""
    return moved(lambda x: x, out)


@rule_of("to", "float", "double", "type_as")
def converted(out: Value, input: Value, *target: object, **settings: object) -> ProvedMap:
    wanted = [value for value in (*target, *settings.values()) if isinstance(value, torch.dtype)]
    if any(dtype not in (torch.float32, torch.float64) for dtype in wanted):
        raise NoRuleError(f"rounding to {wanted[0]} has no bound")
    return kept(out, input)


@rule_of("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
def dropout(out: Value, input: Value, p: float = 0.5, training: bool = True, inplace: bool = False) -> ProvedMap:
    if training:
        raise NoRuleError("drops at random in evaluation too")
    return kept(out, input)


# Reshapes: the same numbers in the same order, as the shape behind shows. Images of a batch must stay apart.


@rule_of("squeeze", "unsqueeze", "unflatten")
def by_shape(out: Value, input: Value, *arguments: object, **settings: object) -> ProvedMap:
    shape = out.shape
    if math.prod(shape) != math.prod(input.shape):
        raise NoRuleError("the images of a batch must stay apart")
    return moved(lambda x: x.reshape(-1, *shape), out)


@rule_of("view", "reshape")
def reshaped(out: Value, input: Value, *sizes: Any, shape: Sequence[Any] = ()) -> ProvedMap:
    _require_batch_first(_listed(sizes or shape)[0])
    return by_shape(out, input)


@rule_of("flatten")
def flatten(out: Value, input: Value, start_dim: int = 0, end_dim: int = -1) -> ProvedMap:
    axes_of(start_dim, input)
    return by_shape(out, input)


@rule_of("expand")
def expand(out: Value, input: Value, *sizes: Any) -> ProvedMap:
    wanted, shape = _listed(sizes), out.shape
    _require_batch_first(wanted[0] if len(wanted) == len(input.shape) + 1 else None)
    return copied(lambda x: x.expand(-1, *shape), out, input)


def _listed(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return arguments that may be given one by one or as one sequence."""
    return tuple(arguments[0]) if len(arguments) == 1 and isinstance(arguments[0], (tuple, list)) else tuple(arguments)


def _require_batch_first(size: object) -> None:
    if not isinstance(size, BatchSize) and size != -1:
        raise NoRuleError("the images of a batch must stay apart: the first size must be x.size(0) or -1")


# Selections and permutations, by what they do to numbers; none may go along the batch.


def _along(name: str, dims: Callable[..., Any]) -> None:
    """Enter the rule of a function of torch, of whose arguments `dims` returns the dimensions."""
    function = getattr(Tensor, name, None) or getattr(F, name)

    def rule(out: Value, input: Value, *args: Any, **settings: Any) -> ProvedMap:
        axes_of(dims(*args, **settings), input)
        return copied(lambda x: function(x, *args, **settings), out, input)

    rule_of(name)(rule)


_along("narrow", lambda dim, start, length: dim)
_along("transpose", lambda dim0, dim1: (dim0, dim1))
_along("permute", lambda *dims: _listed(dims)[1:])
_along("flip", lambda *dims: _listed(dims))
_along("roll", lambda shifts, dims=None: None if dims in ((), []) else dims)
for _name in ("pixel_shuffle", "pixel_unshuffle", "channel_shuffle"):
    _along(_name, lambda *_, **__: ())


@rule_of("pad")
def pad(out: Value, input: Value, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> ProvedMap:
    if len(pad) > 2 * len(input.shape):
        raise NoRuleError("the batch must not be padded")
    sides, fill = list(pad), 0.0 if value is None else float(value)
    if mode == "constant":
        # The number that is put in is rounded where the program has fewer digits.
        offset = up(gamma(0) * abs(fill) * math.sqrt(math.prod(out.shape)))
        return replace(moved(lambda x: F.pad(x, sides, value=fill), out), offset=offset)
    return copied(lambda x: F.pad(x, sides, mode=mode), out, input)


@rule_of("getitem")
def item(out: Value, input: Value, index: Any) -> ProvedMap:
    places = index if isinstance(index, tuple) else (index,)
    if any(not isinstance(place, (slice, int, type(None), type(...))) for place in places):
        raise NoRuleError("only slices and numbers may say which activations are taken")
    counted = [place for place in places if place is not None and place is not ...]
    picks = places[0] is not ... and places[0] != slice(None)
    if picks or (places[0] is ... and len(counted) > len(input.shape)):
        raise NoRuleError("images of a batch must not be picked out: the first index must be :")
    return copied(lambda x: x[places], out, input)


PARTS = (torch.chunk, torch.split, "chunk", "split", torch.unbind, "unbind", torch.tensor_split)
"""What gives parts of an activation, each of which is a selection of its own."""


def part(out: Value, input: Value, number: int, target: Any, *args: Any, **settings: Any) -> ProvedMap:
    """One of the parts that a function or a method gives of an activation."""
    before = 0 if target in ("unbind", torch.unbind) else 1  # arguments before the dimension
    axes_of(settings.get("dim", args[before] if len(args) > before else 0), input)
    call = method_of(target) if isinstance(target, str) else target
    return copied(lambda x: call(x, *args, **settings)[number], out, input)


# Several activations as one.


def _joining(function: Callable[..., Any]) -> Rule:
    def rule(out: Value, tensors: Sequence[Any], dim: int = 0) -> ProvedMap:
        if not all(isinstance(x, Value) for x in tensors):
            raise NoRuleError("only activations are joined, not constants")
        (axis,) = axes_of(dim, out)
        join = Join.ROOT_OF_SQUARES if len(tensors) > 1 else Join.SUM
        return replace(moved(lambda *parts: function(parts, axis + 1), out), join=join)

    return rule


cat, stack = rule_of("cat", "concat", "concatenate")(_joining(torch.cat)), rule_of("stack")(_joining(torch.stack))

MOVING = {rule for rule in RULES.values() if rule.__module__ == __name__}
