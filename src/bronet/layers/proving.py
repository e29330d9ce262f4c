"""A chain of layers and its head, proved one after the other for activations of the shapes that they really get."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from bronet.errors import BronetError
from bronet.layers.base import LipschitzLayer
from bronet.layers.head import Head, ProvedHead
from bronet.proof.proved_map import ProvedMap
from bronet.proof.seal import require_sealed


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
        proved = layer.proved(tuple(x.shape[1:]))
        found.append((name, proved))
        x = _tried(name, proved, x)
    proved_head = head.proved_head(tuple(x.shape[1:]))
    _tried("head", proved_head.logits, x)
    return ProvedChain(tuple(found), proved_head)


def _tried(name: str, layer: ProvedMap, x: Tensor) -> Tensor:
    """Return what a layer makes of one image; raise unless it is sealed and of the shape that its proof is about.

    A shift that was broadcast over channels, say, would stretch distances by more than its proof says.
    """
    require_sealed(layer.apply, name)
    y = layer.apply(x)
    if tuple(y.shape[1:]) != layer.output_shape:
        raise BronetError(f"{name} must give activations of shape {layer.output_shape}, got {tuple(y.shape[1:])}")
    return y
