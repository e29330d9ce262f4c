"""The other layers: dense, activations, shifts, pooling, heads, and the regularised convolution."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from bronet import BROConv2d, BROLinear, BronetError, CholeskyLinear, Householder, LastLayerNormalized, MaxMin, frozen
from bronet.layers import (
    Bias,
    Centring,
    Flatten,
    L2NormPool,
    LipschitzLayer,
    LipschitzRegularizedConv2d,
    Normalization,
    OrthogonalHead,
    PixelUnshuffle,
)
from bronet.layers.base import batch_first
from bronet.layers.regularized_conv import convolve_patches
from bronet.layers.shape import _MovedWindows, cut_windows
from bronet.proof.proved_map import ProvedMap
from jacobian import singular_values

KINDS = ["normal", "zero", "duplicate", "tiny", "huge", "kaiming"]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@torch.no_grad()
def poison(weight: nn.Parameter, kind: str) -> None:
    """Fill a weight with one of the hostile kinds."""
    weight.copy_(draw(*weight.shape))
    match kind:
        case "zero":
            weight.zero_()
        case "duplicate":
            weight[:, -1] = weight[:, 0]
        case "tiny":
            weight.mul_(1e-100)
        case "huge":
            weight.mul_(1e100)
        case "kaiming":
            nn.init.kaiming_normal_(weight)


@pytest.mark.parametrize(("d_in", "d_out"), [(6, 6), (9, 4), (4, 9)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer_class", [BROLinear, CholeskyLinear])
def test_dense_layers_are_contractions_with_a_valid_bound(
    layer_class: type[BROLinear | CholeskyLinear], d_in: int, d_out: int, kind: str
) -> None:
    layer = layer_class(d_in, d_out, dtype=torch.float64)
    poison(layer.weight, kind)
    proved = singular_values(layer.proved((d_in,)).apply, (d_in,))
    assert proved.max() <= layer.lipschitz_bound() * (1 + 1e-12)
    assert layer.lipschitz_bound() <= 1 + 1e-8
    # The forward uses an inverse instead of a factor; rounding times the condition of the ridge separates them.
    assert singular_values(layer, (d_in,)).max() <= 1 + 1e-6


def test_dense_layers_keep_norms_where_dimensions_allow() -> None:
    for layer in (BROLinear(6, 6, rank=2, dtype=torch.float64), BROLinear(4, 9, rank=3, dtype=torch.float64)):
        values = singular_values(layer, (layer.in_features,))
        assert_close(values, torch.ones_like(values), atol=1e-5, rtol=0)
    wide = CholeskyLinear(9, 4, ridge=1e-9, dtype=torch.float64)
    values = singular_values(wide, (9,))
    assert_close(values, torch.ones_like(values), atol=1e-5, rtol=0)


def test_dense_layers_act_on_every_pixel_alike() -> None:
    layer = CholeskyLinear(6, 4, dtype=torch.float64)
    x = draw(2, 6, 3, 5)
    pixel = layer(x[:, :, 1, 2])
    assert_close(layer(x)[:, :, 1, 2], pixel)


def test_identity_residual_starts_near_the_identity_kernel() -> None:
    layer = BROLinear(64, 64, rank=16, residual_depth=4)
    assert_close(layer.V(torch.float32), torch.eye(64, 16), atol=0.05, rtol=0)


def test_maxmin_sorts_pairs_and_keeps_every_value() -> None:
    x = draw(3, 6, 2, 2)
    y = MaxMin()(x)
    assert (y[:, :3] >= y[:, 3:]).all()
    assert_close(y.sum(1), x.sum(1))
    assert_close(y.flatten(1).norm(dim=1), x.flatten(1).norm(dim=1))
    with pytest.raises(BronetError, match="channels must be even"):
        MaxMin()(draw(1, 3))


def test_gradient_of_maxmin_is_that_of_its_definition_and_keeps_its_norm_everywhere() -> None:
    x, g = draw(3, 6, 2, 2).requires_grad_(), draw(3, 6, 2, 2, seed=1)
    a, b = x.chunk(2, dim=1)
    (expected,) = torch.autograd.grad(torch.cat((torch.maximum(a, b), torch.minimum(a, b)), dim=1), x, g)
    (gradient,) = torch.autograd.grad(MaxMin()(x), x, g)
    assert torch.equal(gradient, expected)
    assert torch.autograd.gradgradcheck(MaxMin(), (x,))
    per_image = torch.func.vmap(torch.func.grad(lambda image: MaxMin()(image[None]).square().sum()))(x.detach())
    assert_close(per_image, 2 * x.detach())

    equal = torch.ones(3, 6, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(MaxMin()(equal), equal, g[:, :, 0, 0])
    assert_close(gradient.norm(dim=1), g[:, :, 0, 0].norm(dim=1))


@pytest.mark.parametrize("order", [1, 2])
def test_householder_preserves_norm_and_is_one_lipschitz(order: int) -> None:
    layer = Householder(8, order=order, dtype=torch.float64)
    nn.init.uniform_(layer.angles, -4, 4)
    x, y = draw(50, 8), draw(50, 8, seed=1)
    with torch.no_grad():
        assert_close(layer(x).norm(dim=1), x.norm(dim=1))
        assert ((layer(x) - layer(y)).norm(dim=1) <= (x - y).norm(dim=1) * (1 + 1e-12)).all()


def test_householder_at_its_start_is_maxmin() -> None:
    x = draw(5, 8, 3, 3)
    assert_close(Householder(8, dtype=torch.float64)(x), MaxMin()(x))


def test_householder_refuses_other_orders() -> None:
    with pytest.raises(BronetError, match="order of a Householder activation must be 1 or 2, got 3"):
        Householder(8, order=3)


def test_centring_removes_the_batch_mean_and_remembers_it() -> None:
    layer = Centring(3, dtype=torch.float64)
    x = draw(4, 3, 5, 5) + 2
    y = layer(x)
    assert_close(y.mean((0, 2, 3)), torch.zeros(3).double(), atol=1e-12, rtol=0)
    assert_close(layer.mean, 0.1 * x.mean((0, 2, 3)))
    layer.eval()
    assert_close(layer(x), x - layer.mean.view(-1, 1, 1))


def test_unshuffle_and_flatten_move_every_number_once() -> None:
    x = draw(2, 3, 4, 6)
    for y in (PixelUnshuffle(2)(x), Flatten()(x)):
        assert_close(y.flatten(1).sort(dim=1).values, x.flatten(1).sort(dim=1).values)
    assert PixelUnshuffle(2)(x).shape == (2, 12, 2, 3)
    assert_close(PixelUnshuffle(2)(x), nn.functional.pixel_unshuffle(x, 2))


def test_l2_pool_keeps_the_norm_and_has_a_finite_gradient_at_zero() -> None:
    x = draw(2, 3, 8, 4)
    y = L2NormPool(4)(x)
    assert y.shape == (2, 3, 2, 1)
    assert_close(y.flatten(1).norm(dim=1), x.flatten(1).norm(dim=1))
    zero = torch.zeros(1, 1, 4, 4, requires_grad=True)
    L2NormPool(4)(zero).sum().backward()
    assert zero.grad is not None
    assert zero.grad.isfinite().all()


def test_normalization_has_the_constant_of_its_deviation() -> None:
    layer = Normalization((0.1, 0.2, 0.3), std=0.25, dtype=torch.float64)
    values = singular_values(layer, (3, 2, 2))
    assert_close(values, torch.full_like(values, 4.0))
    assert 4 <= layer.lipschitz_bound() < 4 + 1e-9


@pytest.mark.parametrize("kind", ["normal", "zero", "duplicate", "tiny", "kaiming"])
@pytest.mark.parametrize(("stride", "padding", "size"), [(1, 1, (5, 4)), (2, 2, (6, 6)), (3, 0, (7, 6))])
def test_regularized_convolution_has_a_proved_bound_and_a_smaller_estimate(
    kind: str, stride: int, padding: int, size: tuple[int, int]
) -> None:
    conv = LipschitzRegularizedConv2d(3, 4, 3, input_size=size, stride=stride, padding=padding, dtype=torch.float64)
    poison(conv.weight, kind)
    true = singular_values(conv, (3, *size)).max()
    conv.update_estimate(1000)
    assert conv.lipschitz_estimate() <= true * (1 + 1e-9)
    assert conv.lipschitz_estimate() >= true * 0.99
    assert true <= conv.lipschitz_bound() <= true * (1 + 1e-6) + 1e-100


def test_a_circulant_bound_says_how_loose_it_is() -> None:
    conv = LipschitzRegularizedConv2d(5, 4, 3, input_size=(32, 32), padding=1, dtype=torch.float64)
    conv.update_estimate(200)
    remark = conv.proved((5, 32, 32)).remark
    loose = conv.lipschitz_bound() / float(conv.lipschitz_estimate().detach()) - 1
    assert remark == f"circulant bound, at most {loose:.1%} above the norm"
    assert conv.proved((5, 8, 8)).remark == ""


def test_convolution_by_patches_is_the_convolution() -> None:
    x, kernel = draw(3, 2, 7, 6), draw(5, 2, 3, 3, seed=1)
    expected = nn.functional.conv2d(x, kernel, stride=2, padding=1)
    assert_close(convolve_patches(x, kernel, stride=2, padding=1), expected)


def test_estimate_has_the_gradient_of_the_norm() -> None:
    conv = LipschitzRegularizedConv2d(2, 3, 3, input_size=(4, 4), padding=1, dtype=torch.float64)
    conv.update_estimate(3000)
    (gradient,) = torch.autograd.grad(conv.lipschitz_estimate(), conv.weight)
    direction, h = draw(*conv.weight.shape), 1e-6
    with torch.no_grad():
        conv.weight.add_(h * direction)
        plus = singular_values(conv, (2, 4, 4)).max()
        conv.weight.sub_(2 * h * direction)
        minus = singular_values(conv, (2, 4, 4)).max()
    assert_close((gradient * direction).sum(), (plus - minus) / (2 * h), rtol=1e-4, atol=1e-6)


def test_last_layer_has_unit_rows_and_gaps_between_them() -> None:
    head = LastLayerNormalized(5, 4, dtype=torch.float64)
    rows = head.rows()
    assert_close(rows.norm(dim=1), torch.ones(4).double())
    assert_close(head.gaps()[1, 3], (rows[1] - rows[3]).norm())
    proved = head.proved((5,))
    assert (proved.gaps >= head.gaps()).all()
    assert_close(proved.gaps, head.gaps().detach(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("images", [8, 3])
def test_moving_four_numbers_at_a_time_is_moving_them(dtype: torch.dtype, images: int) -> None:
    """What a pixel unshuffle does on a GPU: three images cannot be moved by fours, and are moved one by one."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 12, 5, images, generator=generator).to(dtype).permute(3, 2, 0, 1).requires_grad_()
    windows = cut_windows(x, 4)
    moved = _MovedWindows.apply(windows)
    assert moved.is_contiguous()
    assert torch.equal(batch_first(moved.flatten(2, 4)), PixelUnshuffle(4)(x))
    g = torch.randn(moved.shape, generator=generator).to(dtype)
    ours, own = (torch.autograd.grad(y, x, g)[0] for y in (moved, windows.permute(0, 2, 4, 1, 3, 5)))
    assert torch.equal(ours, own)


@pytest.mark.parametrize("kind", [LastLayerNormalized, OrthogonalHead])
def test_a_head_gives_float32_logits_under_autocast(kind: type[LastLayerNormalized | OrthogonalHead]) -> None:
    """Two logits that agree to eight bits stay apart."""
    head = kind(8, 3)
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = head(x)
    assert logits.dtype == torch.float32
    assert_close(logits, head(x.float()), rtol=0, atol=0)


def test_orthogonal_head_gaps_are_root_two() -> None:
    head = OrthogonalHead(8, 3, dtype=torch.float64)
    assert_close(head.gaps()[0, 1].item(), math.sqrt(2))
    assert head.gaps().diagonal().count_nonzero() == 0


LAYERS: list[tuple[LipschitzLayer, tuple[int, ...]]] = [
    (MaxMin(), (4, 3, 3)),
    (Householder(4, order=2), (4, 3, 3)),
    (Bias(4), (4, 3, 3)),
    (Centring(4), (4, 3, 3)),
    (Flatten(), (4, 3, 3)),
    (PixelUnshuffle(2), (4, 4, 2)),
    (L2NormPool(2), (4, 4, 2)),
    (Normalization((0.5,) * 4, std=0.3), (4, 3, 3)),
    (BROLinear(4, 6), (4,)),
    (CholeskyLinear(4, 2), (4, 3, 3)),
    (LipschitzRegularizedConv2d(4, 2, 3, input_size=(3, 3), padding=1), (4, 3, 3)),
]


@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=lambda value: type(value).__name__)
def test_proved_map_is_the_layer_and_its_rounding_is_within_its_promise(
    layer: LipschitzLayer, shape: tuple[int, ...]
) -> None:
    layer = layer.eval().double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    proved = layer.proved(shape)
    x, y = draw(20, *shape), draw(20, *shape, seed=1)
    with torch.no_grad():
        assert_close(proved.apply(x), layer(x), atol=1e-12, rtol=1e-9)
        moved = (proved.apply(x) - proved.apply(y)).flatten(1).norm(dim=1)
    assert proved.output_shape == tuple(layer(x).shape[1:])
    distance = (x - y).flatten(1).norm(dim=1)
    assert (moved <= proved.lipschitz * distance * (1 + 1e-12)).all()
    assert layer.lipschitz_bound((shape[-2:]) if len(shape) == 3 else None) <= proved.lipschitz * (1 + 1e-12)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_frozen_layers_have_the_transforms_of_torch_func() -> None:
    """Jacobians and vmap, after one forward pass that makes the weights; without `frozen` gradients are our own."""
    for layer, shape in (
        (BROConv2d(2, 4, 3, dtype=torch.float64), (1, 2, 5, 5)),
        (BROLinear(8, 6, dtype=torch.float64), (1, 8)),
        (CholeskyLinear(8, 6, dtype=torch.float64), (1, 8)),
    ):
        x = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        with frozen(layer):
            y = layer(x)
            jacobian = torch.func.jacrev(layer)(x).reshape(y.numel(), x.numel())
            assert_close(jacobian @ x.flatten(), y.flatten())
            assert_close(torch.func.vmap(lambda z, layer=layer: layer(z[None])[0])(x), y)


class _Blur(LipschitzLayer):
    """A layer of one's own that forgets its bound, which depends on the size of the image."""

    takes_images_only = True
    input_channels = 1

    def forward(self, x: Tensor) -> Tensor:
        return x + x.roll(1, -1)

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        return ProvedMap(lambda x: x + x.roll(1, -1), shape, 2.0)


def test_a_layer_of_images_has_no_bound_unless_it_says_one() -> None:
    with pytest.raises(TypeError, match="_Blur must define lipschitz_bound"):
        _Blur().lipschitz_bound((8, 8))
