"""A network that is asked about round numbers of images gives the logits and gradients that it gave before."""

import pytest
import torch
from torch import Tensor

from bronet.attack.network import MULTIPLE, padded_to_multiple
from bronet.models import build_model
from bronet.recipe import named_recipe

RECIPE = named_recipe("digits/quickstart")
SPEC = RECIPE.data.spec()


@pytest.mark.parametrize("count", [1, 5, MULTIPLE, MULTIPLE + 1])
def test_logits_and_gradients_are_those_of_the_network(count: int) -> None:
    model = build_model(RECIPE.model, SPEC).double().eval().requires_grad_(False)
    asked: list[int] = []

    def watched(pixels: Tensor) -> Tensor:
        asked.append(len(pixels))
        return model(pixels)

    pixels = torch.rand(count, SPEC.channels, SPEC.height, SPEC.width, dtype=torch.float64).requires_grad_()
    weights = torch.randn(count, SPEC.classes, dtype=torch.float64)
    ours, own = padded_to_multiple(watched)(pixels), model(pixels)
    torch.testing.assert_close(ours, own, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad((weights * logits).sum(), pixels)[0] for logits in (ours, own)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)
    assert asked == [MULTIPLE if count <= MULTIPLE else 2 * MULTIPLE]
