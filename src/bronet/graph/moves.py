"""Rules of operations that only move numbers within an image: reshapes, slices, concatenations, padding."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bronet.graph import maps
from bronet.graph.operands import Batch, Input, NoRuleError, Output, Rule, axes_of, axis_of
from bronet.proof.proved_map import ProvedMap


def kept(out: Output, input: Input, *ignored: object, **settings: object) -> ProvedMap:
    """The same numbers: copies, memory formats, dropout in evaluation."""
    return maps.moved(lambda x: x, input.shape)


def converted(out: Output, input: Input, *target: object, **settings: object) -> ProvedMap:
    wanted = [value for value in (*target, *settings.values()) if isinstance(value, torch.dtype)]
    if any(dtype not in (torch.float32, torch.float64) for dtype in wanted):
        raise NoRuleError(f"rounding to {wanted[0]} has no bound")
    return kept(out, input)


def dropout(out: Output, input: Input, p: float = 0.5, training: bool = True, inplace: bool = False) -> ProvedMap:
    if training:
        raise NoRuleError("drops at random in evaluation too")
    return kept(out, input)


def reshaped(out: Output, input: Input, *sizes: Any) -> ProvedMap:
    wanted = sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    if not isinstance(wanted[0], Batch) and wanted[0] != -1:
        raise NoRuleError("the images of a batch must stay apart: the first size must be x.size(0) or -1")
    shape = out.shape
    if math.prod(shape) != math.prod(input.shape):
        raise NoRuleError("the images of a batch must stay apart")
    return maps.moved(lambda x: x.reshape(-1, *shape), shape)


def by_shape(out: Output, input: Input, *arguments: object, **settings: object) -> ProvedMap:
    """Flatten, squeeze and the like: the same numbers in the same order, as the shape behind shows."""
    shape = out.shape
    if math.prod(shape) != math.prod(input.shape):
        raise NoRuleError("the images of a batch must stay apart")
    return maps.moved(lambda x: x.reshape(-1, *shape), shape)


def flatten(out: Output, input: Input, start_dim: int = 0, end_dim: int = -1) -> ProvedMap:
    if start_dim == 0:
        raise NoRuleError("the images of a batch must stay apart: start_dim must be 1")
    return by_shape(out, input)


def moving(function: Callable[..., Tensor]) -> Rule:
    """Return the rule of a function that only moves numbers within one image, by one number of its own."""

    def rule(out: Output, input: Input, factor: int) -> ProvedMap:
        return maps.copied(lambda x: function(x, factor), out.shape, input.shape)

    return rule


def narrow(out: Output, input: Input, dim: int, start: int, length: int) -> ProvedMap:
    axis = axis_of(dim, input) + 1
    return maps.copied(lambda x: x.narrow(axis, start, length), out.shape, input.shape)


def roll(out: Output, input: Input, shifts: Any, dims: Any = None) -> ProvedMap:
    axes, steps = [axis + 1 for axis in axes_of(dims, input)], [shifts] if isinstance(shifts, int) else list(shifts)
    return maps.moved(lambda x: x.roll(steps, axes), out.shape)


def expand(out: Output, input: Input, *sizes: Any) -> ProvedMap:
    wanted = sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    if len(wanted) != len(input.shape) + 1 or not (isinstance(wanted[0], Batch) or wanted[0] == -1):
        raise NoRuleError("the images of a batch must stay apart: the first size must be x.size(0) or -1")
    shape = out.shape
    return maps.copied(lambda x: x.expand(-1, *shape), shape, input.shape)


def permute(out: Output, input: Input, *dims: Any) -> ProvedMap:
    order = tuple(dims[0]) if len(dims) == 1 and not isinstance(dims[0], int) else dims
    if order[0] != 0:
        raise NoRuleError("the images of a batch must stay apart: the first dimension must stay")
    return maps.moved(lambda x: x.permute(*order), out.shape)


def transpose(out: Output, input: Input, dim0: int, dim1: int) -> ProvedMap:
    a, b = (axis_of(dim, input) + 1 for dim in (dim0, dim1))
    return maps.moved(lambda x: x.transpose(a, b), out.shape)


def flip(out: Output, input: Input, *dims: Any) -> ProvedMap:
    wanted = dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims
    axes = [axis_of(dim, input) + 1 for dim in wanted]
    return maps.moved(lambda x: x.flip(axes), out.shape)


def pad(out: Output, input: Input, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> ProvedMap:
    if len(pad) > 2 * len(input.shape):
        raise NoRuleError("the batch must not be padded")
    sides = list(pad)
    if mode == "constant":
        fill = 0.0 if value is None else float(value)
        return maps.moved(lambda x: F.pad(x, sides, value=fill), out.shape)
    return maps.copied(lambda x: F.pad(x, sides, mode=mode), out.shape, input.shape)


def cat(out: Output, tensors: Sequence[Any], dim: int = 0) -> ProvedMap:
    if not all(isinstance(x, Input) for x in tensors):
        raise NoRuleError("only activations are concatenated")
    place = axis_of(dim, tensors[0]) + 1
    return maps.moved(lambda *parts: torch.cat(parts, place), out.shape, inputs=len(tensors))


def stack(out: Output, tensors: Sequence[Any], dim: int = 0) -> ProvedMap:
    if not all(isinstance(x, Input) for x in tensors) or dim == 0:
        raise NoRuleError("only activations are stacked, and not along the batch")
    return maps.moved(lambda *parts: torch.stack(parts, dim), out.shape, inputs=len(tensors))


def item(out: Output, input: Input, index: Any) -> ProvedMap:
    places = index if isinstance(index, tuple) else (index,)
    if any(not isinstance(place, (slice, int, type(None), type(...))) for place in places):
        raise NoRuleError("only slices and numbers may say which activations are taken")
    counted = [place for place in places if place is not None and place is not ...]
    picks = places[0] is not ... and places[0] != slice(None)
    if picks or (places[0] is ... and len(counted) > len(input.shape)):
        raise NoRuleError("images of a batch must not be picked out: the first index must be :")
    return maps.copied(lambda x: x[places], out.shape, input.shape)
