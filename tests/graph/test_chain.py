"""A chain made of layers, lists, `nn.Sequential` or names is one network, and is checked when it is made."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from bronet import BROConv2d, BronetError, Chain, LastLayerNormalized, MaxMin
from bronet.layers.shape import Flatten

SHAPE = (1, 4, 4)
LAYERS = [BROConv2d(1, 4, 3), MaxMin(), Flatten()]
HEAD = LastLayerNormalized(64, 3)


@pytest.mark.parametrize(
    "parts",
    [
        (*LAYERS, HEAD),
        (LAYERS, HEAD),
        ([*LAYERS, HEAD],),
        (nn.Sequential(*LAYERS), HEAD),
        (nn.Sequential(*LAYERS, HEAD),),
    ],
    ids=["arguments", "list and head", "list", "sequential and head", "sequential"],
)
def test_the_parts_of_a_chain_come_in_any_form(parts: tuple[Any, ...]) -> None:
    images = torch.rand(3, *SHAPE)
    chain = Chain(SHAPE, *parts)
    assert list(chain.state_dict()) == ["layers.0.weight", "head.weight", "head.bias"]
    assert torch.equal(chain(images), HEAD(nn.Sequential(*LAYERS)(images)))
    assert chain.training
    assert len(repr(chain)) < 80


def test_names_become_names_of_parameters() -> None:
    named = dict(zip("abc", LAYERS, strict=True))
    assert next(iter(Chain(SHAPE, named, HEAD).state_dict())) == "layers.a.weight"


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Chain(SHAPE, LAYERS), "last part .* must be a head, got Flatten"),
        (lambda: Chain(SHAPE), "last part .* must be a head"),
        (lambda: Chain(SHAPE, nn.ReLU(), HEAD), "layer 0 .* must be a Lipschitz layer, got ReLU"),
        (lambda: Chain((3, 4, 4), LAYERS, HEAD), r"layer 0 .* shape \(3, 4, 4\): .* 1 channels"),
        (lambda: Chain(SHAPE, LAYERS, LastLayerNormalized(65, 3)), r"layer head .* shape \(64,\): .* 65 channels"),
    ],
)
def test_layers_that_do_not_fit_together_are_named_when_the_chain_is_made(
    make: Callable[[], Chain], named: str
) -> None:
    with pytest.raises(BronetError, match=named):
        make()
