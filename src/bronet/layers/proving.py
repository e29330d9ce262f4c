"""A chain of layers and its head, proved one after the other for activations of the shapes that they really get."""

from collections.abc import Iterable
from copy import copy
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.layers.base import LipschitzLayer
from bronet.layers.head import Head, ProvedHead
from bronet.proof.proved_map import ProvedMap

Module = TypeVar("Module", bound=nn.Module)


class ProvedChain(NamedTuple):
    """Proved maps, by the names of their layers, and the head behind them."""

    layers: tuple[tuple[str, ProvedMap], ...]
    head: ProvedHead


@torch.no_grad()
def proved_chain(layers: Iterable[tuple[str, LipschitzLayer]], head: Head, shape: tuple[int, ...]) -> ProvedChain:
    """Return the proofs of layers and head for images of this shape; settings are read once, here."""
    x = torch.zeros(1, *shape, dtype=torch.float64, device=next(head.parameters()).device)
    found = []
    for name, layer in layers:
        proved = _twin(layer).proved(tuple(x.shape[1:]))
        found.append((name, proved))
        x = _tried(name, proved, x)
    proved_head = _twin(head).proved_head(tuple(x.shape[1:]))
    _tried("head", proved_head.logits, x)
    return ProvedChain(tuple(found), proved_head)


def _tried(name: str, layer: ProvedMap, x: Tensor) -> Tensor:
    """Return what a layer makes of one image; raise unless it is of the shape that its proof is about.

    A shift that was broadcast over channels, say, would stretch distances by more than its proof says.
    """
    y = layer.apply(x)
    if tuple(y.shape[1:]) != layer.output_shape:
        raise BronetError(f"{name} must give activations of shape {layer.output_shape}, got {tuple(y.shape[1:])}")
    return y


def _twin(module: Module) -> Module:
    """Return a module of the same numbers and settings that nobody else can change the settings of.

    What a proof computes may read settings such as a stride later. Numbers are the layer's own to copy in `proved`.
    """
    twin = copy(module)
    for held in ("_parameters", "_buffers"):
        twin.__dict__[held] = dict(module.__dict__[held])
    twin.__dict__["_modules"] = {name: part and _twin(part) for name, part in module._modules.items()}
    return twin
