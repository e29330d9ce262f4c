"""BROConv2d: singular values of the explicit Jacobian, before and after training steps, in every shape it offers."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from bronet import BROConv2d, BronetError, frozen
from jacobian import singular_values

SIZES = [(4, 4), (5, 3), (1, 6)]


def trained(conv: BROConv2d, size: tuple[int, int], steps: int = 3) -> BROConv2d:
    """Return the layer after optimiser steps away from its initialisation."""
    generator = torch.Generator().manual_seed(0)
    conv = conv.double()
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    optimiser = torch.optim.SGD(conv.parameters(), lr=0.1)
    x = torch.randn(4, conv.in_channels, *size, generator=generator, dtype=torch.float64)
    target = torch.randn(conv(x).shape, generator=generator, dtype=torch.float64)
    for _ in range(steps):
        optimiser.zero_grad()
        (conv(x) - target).square().mean().backward()
        optimiser.step()
    return conv


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("k", [1, 3, 5])
def test_circular_convolution_is_orthogonal_after_training(size: tuple[int, int], k: int) -> None:
    conv = trained(BROConv2d(4, 4, k, rank=2, padding_mode="circular", ridge=1e-12), size)
    values = singular_values(conv, (4, *size))
    assert_close(values, torch.ones_like(values), atol=1e-6, rtol=0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize(("c_in", "c_out", "rank"), [(4, 4, 1), (6, 3, 3), (3, 6, 3)])
def test_cropped_convolution_is_a_contraction(size: tuple[int, int], k: int, c_in: int, c_out: int, rank: int) -> None:
    conv = trained(BROConv2d(c_in, c_out, k, rank=rank), size)
    values = singular_values(conv.proved((c_in, *size)).apply, (c_in, *size))
    assert values.max() <= conv.lipschitz_bound(size) * (1 + 1e-12)
    assert singular_values(conv, (c_in, *size)).max() <= 1 + 1e-9


def test_kept_padding_preserves_the_norm_and_cropping_never_gains() -> None:
    """App. A.4: removing the padded pixels can only drop the norm."""
    kept = trained(BROConv2d(4, 4, rank=2, keep_padding=True, ridge=1e-12), (5, 5))
    cropped = BROConv2d(4, 4, rank=2, ridge=1e-12).double()
    cropped.load_state_dict(kept.state_dict())
    x = torch.randn(16, 4, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y, z = kept(x), cropped(x)
    assert y.shape == (16, 4, 7, 7)
    assert_close(y[..., 1:-1, 1:-1], z)
    norms = x.flatten(1).norm(dim=1)
    assert_close(y.flatten(1).norm(dim=1), norms, rtol=1e-6, atol=0)
    drop = 1 - z.flatten(1).norm(dim=1) / norms
    assert (drop >= 0).all()
    assert drop.max() > 1e-3  # it is a real drop, not rounding


def test_expanding_layer_with_kept_padding_is_an_isometry() -> None:
    conv = trained(BROConv2d(2, 5, rank=2, keep_padding=True, ridge=1e-12), (4, 3))
    values = singular_values(conv, (2, 4, 3))
    assert_close(values, torch.ones_like(values), atol=1e-6, rtol=0)


def test_stride_is_a_pixel_unshuffle_then_a_convolution() -> None:
    conv = trained(BROConv2d(2, 6, rank=3, stride=2), (6, 4))
    assert conv(torch.zeros(1, 2, 6, 4).double()).shape == (1, 6, 3, 2)
    assert singular_values(conv, (2, 6, 4)).max() <= 1 + 1e-9
    with pytest.raises(BronetError, match="multiples of 2, got 5 x 4"):
        conv(torch.zeros(1, 2, 5, 4).double())


def test_output_is_real_and_one_layer_serves_every_image_size() -> None:
    conv = BROConv2d(64, 64, kernel_size=3, rank=16)
    for size in [(32, 32), (7, 12), (1, 1)]:
        y = conv(torch.randn(2, 64, *size))
        assert y.shape == (2, 64, *size)
        assert y.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_float_dtype_gives_nearly_the_same_function(dtype: torch.dtype) -> None:
    conv = BROConv2d(8, 8, rank=2, residual_depth=4)
    x = torch.randn(3, 8, 6, 6, generator=torch.Generator().manual_seed(0))
    expected = conv.double()(x.double())
    y = conv.to(dtype)(x.to(dtype))
    assert y.dtype == dtype
    assert_close(y.double(), expected, atol=100 * torch.finfo(dtype).eps, rtol=0)


def test_bro_does_not_see_a_shift_of_the_kernel() -> None:
    """A unit phase per frequency cancels in V (V*V)^-1 V*."""
    conv = trained(BROConv2d(4, 4, 5, rank=2, padding_mode="circular"), (6, 6))
    x = torch.randn(1, 4, 6, 6, dtype=torch.float64)
    before = conv(x)
    with torch.no_grad():
        conv.weight[..., 1:-1, 1:-1] = conv.weight[..., 1:-1, 1:-1].clone()
        inner = conv.weight.clone()
        inner[..., 0, :] = 0  # leave room for a shift by one row
        conv.weight.copy_(inner)
        before = conv(x)
        conv.weight.copy_(inner.roll(-1, dims=-2))
    assert_close(conv(x), before)


@pytest.mark.parametrize("weight", ["zero", "duplicate", "tiny", "huge"])
def test_hostile_weights_keep_the_bound_and_the_output_finite(weight: str) -> None:
    conv = BROConv2d(4, 4, rank=2).double()
    with torch.no_grad():
        nn.init.normal_(conv.weight)
        match weight:
            case "zero":
                conv.weight.zero_()
            case "duplicate":
                conv.weight[:, 1] = conv.weight[:, 0]
            case "tiny":
                conv.weight.mul_(1e-150)
            case "huge":
                conv.weight.mul_(1e150)
    values = singular_values(conv.proved((4, 3, 3)).apply, (4, 3, 3))
    assert values.isfinite().all()
    assert values.max() <= conv.lipschitz_bound((3, 3)) * (1 + 1e-12)
    assert singular_values(conv, (4, 3, 3)).max() <= 1 + 1e-6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"in_channels": 8, "out_channels": 8, "rank": 8}, "rank must satisfy 1 <= n < m = 8, got n = 8"),
        ({"in_channels": 8, "out_channels": 8, "rank": 0}, "rank must satisfy 1 <= n < m = 8, got n = 0"),
        ({"in_channels": 8, "out_channels": 8, "ridge": -1e-7}, "ridge must be a number from 0 to 1, got -1e-07"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(BronetError, match=message):
        BROConv2d(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(1, 3, 4, 4), (1, 4, 0, 4), (0, 4, 4, 4)])
def test_bad_images_are_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(BronetError, match=r"\(.*\)"):
        BROConv2d(4, 4)(torch.zeros(shape))


def test_frozen_weights_are_kept_but_never_stale() -> None:
    conv, other = BROConv2d(4, 4, rank=1), BROConv2d(4, 4, rank=1)
    nn.init.normal_(other.weight)
    x = torch.randn(1, 4, 5, 5)
    with torch.no_grad(), frozen(conv):
        first = conv(x)
        assert_close(conv(x), first)
        conv.load_state_dict(other.state_dict())
        assert_close(conv(x), other(x))
        conv.weight.mul_(-1).add_(0.1)
        assert not torch.equal(conv(x), other(x))
    assert conv._kept is None


def test_frozen_computes_derived_weights_once() -> None:
    conv = BROConv2d(4, 4, rank=1)
    calls = []
    derive = conv.derive
    conv.derive = lambda key: calls.append(key) or derive(key)  # type: ignore[method-assign, func-returns-value]
    x = torch.randn(1, 4, 5, 5)
    with frozen(conv):
        conv(x), conv(x)
    assert len(calls) == 1
