"""Rules of operations that only move numbers within an image: reshapes, slices, concatenations, padding.

`FUNCTIONS` and `MODULES` say whose they are. What an operation does to the numbers 1, 2, ... shows how often it copies.
"""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bronet.graph.operations import (
    MOVES,
    Apply,
    Batch,
    Input,
    ModuleRule,
    NoRuleError,
    Output,
    Rule,
    axes_of,
    axis_of,
    entries_of,
    listed,
    with_attributes,
)
from bronet.proof.proved_map import Join, ProvedMap, exact, up


def moved(apply: Apply, out: Output) -> ProvedMap:
    """Return the map that puts the numbers of its input, each once, elsewhere."""
    return replace(exact(apply, out.shape), remark=MOVES)


def copied(apply: Apply, out: Output, input: Input) -> ProvedMap:
    """Return the map of an operation that selects entries, of which each may be there several times or not at all."""
    index = entries_of(apply, input.shape)
    times = int(index[index >= 0].flatten().bincount().max()) if bool((index >= 0).any()) else 0
    return ProvedMap(apply, out.shape, 1.0 if times <= 1 else up(math.sqrt(times)), remark=MOVES)


def kept(out: Output, input: Input, *ignored: object, **settings: object) -> ProvedMap:
    """The same numbers: copies, memory formats, dropout in evaluation."""
    return moved(lambda x: x, out)


def converted(out: Output, input: Input, *target: object, **settings: object) -> ProvedMap:
    wanted = [value for value in (*target, *settings.values()) if isinstance(value, torch.dtype)]
    if any(dtype not in (torch.float32, torch.float64) for dtype in wanted):
        raise NoRuleError(f"rounding to {wanted[0]} has no bound")
    return kept(out, input)


def dropout(out: Output, input: Input, p: float = 0.5, training: bool = True, inplace: bool = False) -> ProvedMap:
    if training:
        raise NoRuleError("drops at random in evaluation too")
    return kept(out, input)


def by_shape(out: Output, input: Input, *arguments: object, **settings: object) -> ProvedMap:
    """Flatten, squeeze and the like: the same numbers in the same order, as the shape behind shows."""
    shape = out.shape
    if math.prod(shape) != math.prod(input.shape):
        raise NoRuleError("the images of a batch must stay apart")
    return moved(lambda x: x.reshape(-1, *shape), out)


def reshaped(out: Output, input: Input, *sizes: Any) -> ProvedMap:
    _require_batch_first(listed(sizes)[0])
    return by_shape(out, input)


def expand(out: Output, input: Input, *sizes: Any) -> ProvedMap:
    wanted, shape = listed(sizes), out.shape
    _require_batch_first(wanted[0] if len(wanted) == len(input.shape) + 1 else None)
    return copied(lambda x: x.expand(-1, *shape), out, input)


def _require_batch_first(size: object) -> None:
    if not isinstance(size, Batch) and size != -1:
        raise NoRuleError("the images of a batch must stay apart: the first size must be x.size(0) or -1")


def flatten(out: Output, input: Input, start_dim: int = 0, end_dim: int = -1) -> ProvedMap:
    if start_dim == 0:
        raise NoRuleError("the images of a batch must stay apart: the first dimension must stay")
    return by_shape(out, input)


def by_number(function: Callable[..., Tensor]) -> Rule:
    """Return the rule of a function that only moves numbers within one image, by one number of its own."""
    return lambda out, input, factor: copied(lambda x: function(x, factor), out, input)


def narrow(out: Output, input: Input, dim: int, start: int, length: int) -> ProvedMap:
    axis = axis_of(dim, input) + 1
    return copied(lambda x: x.narrow(axis, start, length), out, input)


def roll(out: Output, input: Input, shifts: Any, dims: Any = None) -> ProvedMap:
    axes, steps = [axis + 1 for axis in axes_of(dims, input)], [shifts] if isinstance(shifts, int) else list(shifts)
    return moved(lambda x: x.roll(steps, axes), out)


def permute(out: Output, input: Input, *dims: Any) -> ProvedMap:
    order = [0, *(axis_of(dim, input) + 1 for dim in listed(dims)[1:])]
    if listed(dims)[0] != 0:
        raise NoRuleError("the images of a batch must stay apart: the first dimension must stay")
    return moved(lambda x: x.permute(order), out)


def transpose(out: Output, input: Input, dim0: int, dim1: int) -> ProvedMap:
    a, b = (axis_of(dim, input) + 1 for dim in (dim0, dim1))
    return moved(lambda x: x.transpose(a, b), out)


def flip(out: Output, input: Input, *dims: Any) -> ProvedMap:
    axes = [axis_of(dim, input) + 1 for dim in listed(dims)]
    return moved(lambda x: x.flip(axes), out)


def pad(out: Output, input: Input, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> ProvedMap:
    if len(pad) > 2 * len(input.shape):
        raise NoRuleError("the batch must not be padded")
    sides, fill = list(pad), 0.0 if value is None else float(value)
    if mode == "constant":
        return moved(lambda x: F.pad(x, sides, value=fill), out)
    return copied(lambda x: F.pad(x, sides, mode=mode), out, input)


def cat(out: Output, tensors: Sequence[Any], dim: int = 0) -> ProvedMap:
    return _joined(torch.cat, out, tensors, axis_of(dim, _first(tensors)) + 1)


def stack(out: Output, tensors: Sequence[Any], dim: int = 0) -> ProvedMap:
    if dim == 0:
        raise NoRuleError("activations must not be stacked along the batch")
    return _joined(torch.stack, out, tensors, dim)


def _joined(function: Callable[..., Tensor], out: Output, tensors: Sequence[Any], dim: int) -> ProvedMap:
    _first(tensors)
    join = Join.ROOT_OF_SQUARES if len(tensors) > 1 else Join.SUM
    return replace(moved(lambda *parts: function(parts, dim), out), join=join)


def _first(tensors: Sequence[Any]) -> Input:
    if not all(isinstance(x, Input) for x in tensors):
        raise NoRuleError("only activations are joined, not constants")
    return tensors[0]


def item(out: Output, input: Input, index: Any) -> ProvedMap:
    places = index if isinstance(index, tuple) else (index,)
    if any(not isinstance(place, (slice, int, type(None), type(...))) for place in places):
        raise NoRuleError("only slices and numbers may say which activations are taken")
    counted = [place for place in places if place is not None and place is not ...]
    picks = places[0] is not ... and places[0] != slice(None)
    if picks or (places[0] is ... and len(counted) > len(input.shape)):
        raise NoRuleError("images of a batch must not be picked out: the first index must be :")
    return copied(lambda x: x[places], out, input)


def _pad_module(module: nn.Module, out: Output, x: Input) -> ProvedMap:
    sides, value, name = getattr(module, "padding", ()), getattr(module, "value", 0.0), type(module).__name__
    mode = "reflect" if "Reflection" in name else "replicate" if "Replication" in name else "constant"
    return pad(out, x, sides, mode, value)


FUNCTIONS: dict[Any, Rule] = {
    **dict.fromkeys(("contiguous", "clone", torch.clone, "detach"), kept),
    **dict.fromkeys(("to", "float", "double", "type_as"), converted),
    **dict.fromkeys((F.dropout, F.dropout1d, F.dropout2d, F.alpha_dropout), dropout),
    **dict.fromkeys(("view", "reshape"), reshaped),
    torch.reshape: reshaped,
    **dict.fromkeys((torch.flatten, "flatten"), flatten),
    **dict.fromkeys((torch.squeeze, "squeeze", torch.unsqueeze, "unsqueeze"), by_shape),
    **dict.fromkeys((torch.unflatten, "unflatten"), by_shape),
    **dict.fromkeys((torch.permute, "permute"), permute),
    **dict.fromkeys((torch.transpose, "transpose"), transpose),
    **dict.fromkeys((torch.flip, "flip"), flip),
    **dict.fromkeys((torch.narrow, "narrow"), narrow),
    **dict.fromkeys((torch.roll, "roll"), roll),
    "expand": expand,
    F.pad: pad,
    **{function: by_number(function) for function in (F.pixel_shuffle, F.pixel_unshuffle, F.channel_shuffle)},
    **dict.fromkeys((torch.cat, torch.concat), cat),
    torch.stack: stack,
    operator.getitem: item,
}
PARTS = (torch.chunk, torch.split, "chunk", "split", torch.unbind, "unbind", torch.tensor_split)
"""What gives parts of an activation, each of which is a selection of its own."""
MODULES: dict[type[nn.Module], ModuleRule] = {
    nn.Identity: with_attributes(kept),
    nn.Flatten: with_attributes(flatten, "start_dim"),
    nn.Unflatten: with_attributes(by_shape),
    nn.PixelShuffle: lambda module, out, x: FUNCTIONS[F.pixel_shuffle](out, x, module.upscale_factor),
    nn.PixelUnshuffle: lambda module, out, x: FUNCTIONS[F.pixel_unshuffle](out, x, module.downscale_factor),
    nn.ChannelShuffle: lambda module, out, x: FUNCTIONS[F.channel_shuffle](out, x, module.groups),
    **dict.fromkeys((nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout), with_attributes(dropout, "training")),
    **dict.fromkeys((nn.ZeroPad2d, nn.ConstantPad2d, nn.ReflectionPad2d, nn.ReplicationPad2d), _pad_module),
}
