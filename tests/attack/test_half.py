"""A search in half precision sees the gradients of the network itself, however small they are at the logits."""

import pytest
import torch
from torch import Tensor

from bronet.attack.network import in_half_precision
from bronet.layers import frozen
from bronet.models import build_model
from bronet.recipe import named_recipe

RECIPE = named_recipe("digits/quickstart")
SPEC = RECIPE.data.spec()
# Of the loss: beyond what half precision can tell from zero, and from infinity.
FACTORS = (1e-12, 1.0, 1e9)


def inputs(device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(6, SPEC.channels, SPEC.height, SPEC.width, generator=generator)
    weights = torch.randn(6, SPEC.classes, generator=generator) * torch.tensor([1, 1e-9, 1e-3, 1e3, 0, 1])[:, None]
    return images.to(device), weights.to(device)


def gradients(model: object, images: Tensor, weights: Tensor) -> list[Tensor]:
    """Return the gradients of several losses, one after the other through the same logits."""
    assert callable(model)
    pixels = images.clone().requires_grad_()
    logits = model(pixels)
    return [
        torch.autograd.grad((factor * weights * logits).sum(), pixels, retain_graph=True)[0] / factor
        for factor in FACTORS
    ]


def far(ours: Tensor, own: Tensor) -> float:
    """Return the largest distance of two gradients of an image, relative to its length; 0 where both vanish."""
    length = own.flatten(1).norm(dim=1)
    return float(((ours - own).flatten(1).norm(dim=1) / length.clamp_min(torch.finfo(own.dtype).tiny)).amax())


def test_gradients_are_those_of_the_network() -> None:
    model = build_model(RECIPE.model, SPEC).eval().requires_grad_(False)
    images, weights = inputs("cpu")
    own = gradients(model, images, weights)[1]
    for ours in gradients(in_half_precision(model), images, weights):
        assert far(ours, own) <= 1e-5
        assert not ours[4].any()  # no weight, no gradient: and no NaN
    assert torch.equal(in_half_precision(model)(images), model(images))


def test_no_gradient_is_none_where_tiny_numbers_are_flushed_to_zero() -> None:
    images = torch.rand(2, 1, 2, 2, requires_grad=True)
    logits = in_half_precision(lambda pixels: pixels.flatten(1) * 2)(images)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot")
    try:
        (gradient,) = torch.autograd.grad((logits * torch.tensor([[0.0], [1.0]])).sum(), images)
    finally:
        torch.set_flush_denormal(False)
    assert gradient[0].eq(0).all()
    assert gradient[1].eq(2).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_half_precision_loses_neither_small_nor_large_gradients() -> None:
    model = build_model(RECIPE.model, SPEC, device="cuda").eval().requires_grad_(False)
    images, weights = inputs("cuda")
    with frozen(model):
        own = gradients(model, images, weights)[1]
        coarse, fine = in_half_precision(model)(images), model(images)
        taken = gradients(in_half_precision(model), images, weights)
    assert coarse.dtype == torch.float32
    assert (coarse - fine).norm() <= 0.02 * fine.norm()
    assert max(far(ours, own) for ours in taken) <= 0.1
