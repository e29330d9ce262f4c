"""The layer of own_layer.py keeps its promise: orthogonal, bounded for hostile weights, certified in a network."""

import pytest
import torch
from own_layer import ReflectionChainConv2d
from torch import Tensor

import bronet
from bronet.layers import CONVOLUTIONS, PaddingMode
from bronet.recipe import named_recipe, override

SIZE = (4, 3)


def explicit_matrix(layer: ReflectionChainConv2d, channels: int) -> Tensor:
    """Return the matrix of the map that a certificate uses: its columns are the images of the unit vectors."""
    inputs = channels * SIZE[0] * SIZE[1]
    basis = torch.eye(inputs, dtype=torch.float64).view(inputs, channels, *SIZE)
    return layer.proved((channels, *SIZE)).apply(basis).flatten(1).mT


def layer_with(weight: str, padding_mode: PaddingMode) -> ReflectionChainConv2d:
    layer = ReflectionChainConv2d(4, 4, padding_mode=padding_mode, dtype=torch.float64)
    drawn = torch.randn(layer.weight.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    fills = {"normal": drawn, "zero": 0 * drawn, "huge": 1e150 * drawn, "tiny": 1e-150 * drawn, "equal": 1 + 0 * drawn}
    with torch.no_grad():
        layer.weight.copy_(fills[weight])
    return layer


@pytest.mark.parametrize("weight", ["normal", "zero", "huge", "tiny", "equal"])
def test_every_singular_value_is_one_whatever_the_kernel(weight: str) -> None:
    values = torch.linalg.svdvals(explicit_matrix(layer_with(weight, "circular"), 4))
    torch.testing.assert_close(values, torch.ones_like(values), atol=1e-12, rtol=0)


@pytest.mark.parametrize("weight", ["normal", "zero", "huge", "tiny", "equal"])
def test_the_proved_bound_lies_above_the_norm_and_close_to_one(weight: str) -> None:
    layer = layer_with(weight, "zeros")
    norm = torch.linalg.matrix_norm(explicit_matrix(layer, 4), 2)
    assert norm * (1 - 1e-13) <= layer.lipschitz_bound(SIZE) <= 1 + 1e-9


def test_it_starts_as_the_identity_and_learns() -> None:
    layer = CONVOLUTIONS["chain"](4, 4)
    x = torch.randn(2, 4, *SIZE)
    torch.testing.assert_close(layer(x), x, atol=1e-5, rtol=0)
    layer(x).square().sum().add(layer(x).sum()).backward()
    assert all(parameter.grad is not None and parameter.grad.norm() > 0 for parameter in layer.parameters())


def test_one_word_of_a_recipe_puts_it_into_a_network_that_is_proved() -> None:
    recipe = override(named_recipe("digits/quickstart"), ["model.backbone=chain", "model.width=8", "model.depth=2"])
    model = bronet.build_model(recipe.model, recipe.data.spec())
    layers = [layer for layer in model.modules() if isinstance(layer, ReflectionChainConv2d)]
    assert len(layers) == 2
    radius = bronet.certified_radius(model, torch.rand(3, 1, 8, 8))
    assert (radius > 0).all()


def test_what_it_cannot_do_is_refused_in_one_line() -> None:
    with pytest.raises(bronet.BronetError, match="must keep channels and size, got 4 to 8 channels"):
        CONVOLUTIONS["chain"](4, 8)
