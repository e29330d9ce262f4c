"""Residuals, branches, groups, dilations, adjoints and scales: bounds against explicit Jacobians, and rounding."""

import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from bronet import BronetError, Chain, check, prove
from bronet.layers import (
    CONVOLUTIONS,
    BROConv2d,
    BROConvTranspose2d,
    Flatten,
    Groups,
    LastLayerNormalized,
    LipschitzLayer,
    LipschitzRegularizedConv2d,
    MaxMin,
    Parallel,
    PixelUnshuffle,
    RepeatedPixels,
    Residual,
    Scale,
    ScaledMeanPool,
    Standardization,
    frozen,
)
from jacobian import jacobian, singular_values

pytestmark = pytest.mark.usefixtures("one_thread")
Shape = tuple[int, ...]


def shaken(module: nn.Module, seed: int = 0) -> nn.Module:
    """Return the module in float64 with parameters and buffers far from where they start."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.add_(torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype).mul_(0.5))
        for part in module.modules():
            if isinstance(part, Standardization):
                part.variance.abs_()
    return module.double().eval()


def regularized(*, channels: int = 2, groups: int = 1) -> LipschitzRegularizedConv2d:
    return LipschitzRegularizedConv2d(channels, 3 * groups, 3, stride=groups, input_size=(4, 4), groups=groups)


LAYERS: dict[str, tuple[Callable[[], LipschitzLayer], Shape]] = {
    "groups": (lambda: Groups(BROConv2d(2, 2, 3), BROConv2d(2, 4, 3)), (4, 4, 4)),
    "groups with a stride": (lambda: Groups(regularized(), regularized(), regularized()), (6, 4, 4)),
    "groups of a convolution": (lambda: BROConv2d(4, 6, 3, groups=2, dilation=2), (4, 4, 4)),
    "groups, own stride": (lambda: regularized(channels=6, groups=3), (6, 4, 4)),
    "transposed in groups": (lambda: BROConvTranspose2d(6, 4, 3, stride=2, groups=2), (6, 2, 2)),
    "dilation": (lambda: BROConv2d(2, 2, 3, dilation=2), (2, 6, 6)),
    "dilation of an odd image": (lambda: BROConv2d(2, 3, 3, dilation=3), (2, 5, 4)),
    "dilation behind a stride": (lambda: BROConv2d(1, 4, 3, stride=2, dilation=2), (1, 8, 8)),
    "circular dilation": (lambda: BROConv2d(2, 2, 3, padding_mode="circular", dilation=2), (2, 6, 6)),
    "transposed": (lambda: BROConvTranspose2d(6, 2, 3, stride=2), (6, 3, 3)),
    "scale": (lambda: Scale(3, limit=0.7), (3, 2, 2)),
    "standardization": (lambda: Standardization(3, limit=2.0), (3, 2, 2)),
    "repeated pixels": (lambda: RepeatedPixels(2), (2, 2, 2)),
    "mean pool": (lambda: ScaledMeanPool(2), (2, 4, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_bound_is_no_less_than_the_jacobians_norm(name: str) -> None:
    make, shape = LAYERS[name]
    for seed in range(5):
        layer = shaken(make(), seed)
        assert isinstance(layer, LipschitzLayer)
        largest = float(singular_values(layer, shape).max())
        assert largest <= layer.proved(shape).lipschitz * (1 + 1e-13)  # the Jacobian rounds
        assert layer.lipschitz_bound(shape[1:]) <= max(largest, 1) * 1.02  # type: ignore[arg-type]
        assert float(torch.as_tensor(layer.lipschitz_estimate()).detach()) <= layer.proved(shape).lipschitz
        x = torch.randn(3, *shape, dtype=torch.float64)
        assert_close(layer.proved(shape).apply(x), layer(x))
        assert check(layer, shape).certifiable


@pytest.mark.skipif(np.finfo(np.longdouble).eps > 2.0**-60, reason="longdouble is no wider than float64 here")
@pytest.mark.parametrize(
    "name", ["groups with a stride", "groups, own stride", "scale", "standardization", "mean pool"]
)
def test_rounding_stays_within_the_promise(name: str) -> None:
    make, shape = LAYERS[name]
    layer = shaken(make())
    assert isinstance(layer, LipschitzLayer)
    proved = layer.proved(shape)
    zero = torch.zeros(1, *shape, dtype=torch.float64)
    wide = [proved.apply(zero), jacobian(proved.apply, shape), torch.randn(20, *shape, dtype=torch.float64)]
    shift, matrix, x = (t.numpy().astype(np.longdouble).reshape(len(t), -1) for t in wide)
    if name in ("scale", "standardization"):  # their shift would round in the Jacobian
        assert isinstance(layer, (Scale, Standardization))
        matrix = np.diag(layer.scale_and_shift()[0].detach().numpy().astype(np.longdouble).repeat(4))
    error = np.linalg.norm(proved.apply(wide[2]).numpy().reshape(20, -1) - (x @ matrix.T + shift), axis=1)
    assert (error <= proved.gain * np.linalg.norm(x, axis=1) + proved.offset).all()
    assert (error > 0).any()


def test_a_dilated_convolution_has_pixels_between_its_taps() -> None:
    """The textbook's kernel with zeros between the taps, on an image that wraps around."""
    torch.manual_seed(0)
    plain, apart = (BROConv2d(2, 2, 3, padding_mode="circular", dilation=d).double() for d in (1, 2))
    sparse = BROConv2d(2, 2, 5, padding_mode="circular").double()
    with torch.no_grad():
        plain.weight.add_(torch.randn_like(plain.weight))
        apart.weight.copy_(plain.weight)
        sparse.weight.zero_()[:, :, ::2, ::2] = plain.weight
        x = torch.randn(2, 2, 6, 6, dtype=torch.float64)
        assert_close(apart(x), sparse(x))
        assert not torch.allclose(apart(x), plain(x))
    with pytest.raises(BronetError, match="multiples of 2, got 5 x 6"):
        apart(x[:, :, :5])


def test_taps_that_lie_outside_of_the_image_cost_nothing() -> None:
    """Beyond the image's sides every pixel is convolved alone, however far the taps are apart."""
    torch.manual_seed(0)
    near, far = (BROConv2d(2, 3, 3, dilation=d).double() for d in (5, 10**6))
    x = torch.rand(2, 2, 5, 4, dtype=torch.float64)
    with torch.no_grad():
        far.weight.copy_(near.weight)
        assert_close(far(x), near(x))
        assert_close(far.eval().proved((2, 5, 4)).apply(x), far(x))


def test_the_transposed_convolution_is_the_adjoint() -> None:
    torch.manual_seed(0)
    down, up = BROConv2d(2, 6, 3, stride=2).double(), BROConvTranspose2d(6, 2, 3, stride=2).double()
    with torch.no_grad():
        down.weight.add_(torch.randn_like(down.weight))
        up.weight.copy_(down.weight)
    J, K = jacobian(down, (2, 6, 6)), jacobian(up, (6, 3, 3))
    shuffle = jacobian(PixelUnshuffle(2), (2, 6, 6)).mT @ jacobian(lambda x: F.pixel_unshuffle(x, 2), (2, 6, 6))
    assert_close(J, (shuffle @ K).mT)


def test_a_standardization_divides_by_the_deviation_within_its_limit() -> None:
    torch.manual_seed(0)
    layer, x = Standardization(3, limit=4.0).double(), torch.randn(8, 3, 4, 4, dtype=torch.float64)
    x = x * torch.tensor([2.0, 0.5, 0.01])[:, None, None] + 3
    deviation, mean = layer(x).std((0, 2, 3), correction=0), layer(x).mean((0, 2, 3))
    assert_close(mean, torch.zeros_like(mean))
    one = torch.ones(2, dtype=torch.float64)
    assert_close(deviation[:2], one)
    assert_close(deviation[2], 4 * x[:, 2].std(correction=0))
    for _ in range(100):
        layer(x)
    assert_close(layer.eval()(x), layer.train()(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("plain", [False, True], ids=["mix", "plain"])
def test_a_chain_takes_residuals_and_branches(plain: bool) -> None:
    torch.manual_seed(0)
    branch = nn.Sequential(BROConv2d(4, 4, 3), MaxMin())
    parts = [Residual(branch, plain=plain), Parallel(BROConv2d(4, 4, 3), MaxMin()), Flatten()]
    model = Chain((4, 3, 3), parts, LastLayerNormalized(72, 3))
    network, expected = prove(model), math.sqrt(2) * (2 if plain else 1)
    assert network.lipschitz == pytest.approx(expected, rel=1e-6)
    assert float(model.lipschitz_estimate().detach()) == pytest.approx(expected, rel=1e-6)
    twin = model.double().eval()
    for x in torch.rand(5, 1, 4, 3, 3, dtype=torch.float64):
        J = torch.func.jacrev(lambda x: Flatten()(twin.layers(x)))(x).reshape(72, 36)
        assert float(torch.linalg.matrix_norm(J.detach(), 2)) <= network.lipschitz


@pytest.mark.parametrize("kind", CONVOLUTIONS)
@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_dilated_convolution_keeps_the_size_up_to_the_stride(kind: str, kernel: int, stride: int) -> None:
    make = CONVOLUTIONS[kind]
    if not make.unshuffles or "zeros" not in make.padding_modes:
        pytest.skip(f"{kind} has no dilation here")
    for channels in (2, 4, 6):
        layer = make(4, channels, kernel, stride=stride, dilation=2).double().eval()
        expected = (channels, 10 // stride, 10 // stride)
        x = torch.rand(2, 4, 10, 10, dtype=torch.float64)
        assert layer(x).shape == (2, *expected)
        proved = layer.proved((4, 10, 10))
        assert proved.output_shape == expected
        assert_close(proved.apply(x), layer(x))


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_a_convolution_in_groups_is_a_row_of_convolutions(kind: str) -> None:
    """Everything that is asked of it is asked of its parts, and the proof is no less than each of theirs."""
    torch.manual_seed(0)
    size = (6, 6) if kind == "lipreg" else None
    layer = CONVOLUTIONS[kind](4, 6, 3, groups=2, input_size=size)
    assert layer.parts is not None
    assert all(name.startswith("parts.layers.") for name in layer.state_dict())
    first, second = (part for part in layer.parts.layers if isinstance(part, LipschitzLayer))
    layer.reset_parameters()
    layer.update_estimate(2)
    estimate = torch.as_tensor(layer.lipschitz_estimate())
    assert estimate == max(torch.as_tensor(part.lipschitz_estimate()) for part in (first, second))
    layer.double().eval()
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    assert_close(y, torch.cat([first(x[:, :2]), second(x[:, 2:])], dim=1))
    (gradient,) = torch.autograd.grad(y[:, :3].sum(), x)
    assert gradient[:, :2].any()
    assert not gradient[:, 2:].any()
    bounds = [part.proved((2, 6, 6)).lipschitz for part in (first, second)]
    assert layer.proved((4, 6, 6)).lipschitz == max(bounds) == layer.lipschitz_bound((6, 6))
    with frozen(layer), torch.no_grad():
        assert_close(layer(x), y)
    twin = CONVOLUTIONS[kind](4, 6, 3, groups=2, input_size=size).double().eval()
    twin.load_state_dict(layer.state_dict())
    assert_close(twin(x), y)
    assert_close(copy.deepcopy(layer)(x), y)
    assert "2 x" in repr(layer)


def test_a_convolution_in_groups_trains_in_a_chain() -> None:
    torch.manual_seed(0)
    model = Chain((4, 4, 4), [BROConv2d(4, 4, 3, groups=2), MaxMin(), Flatten()], LastLayerNormalized(64, 2))
    x, labels = torch.randn(16, 4, 4, 4), torch.arange(16) % 2
    optimizer, before = torch.optim.SGD(model.parameters(), lr=0.5), F.cross_entropy(model(x), labels).item()
    for _ in range(20):
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
    assert F.cross_entropy(model(x), labels).item() < before
    assert prove(model.eval()).lipschitz == pytest.approx(1, rel=1e-6)
    layers = nn.Sequential(*model.layers)
    assert_close(torch.fx.symbolic_trace(layers)(x), layers(x))


def test_what_a_part_remarks_is_said_of_the_groups() -> None:
    layer = CONVOLUTIONS["lot"](4, 4, 3, groups=2)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.copy_(torch.ones_like(weight) + 1e-6 * torch.randn_like(weight))
    assert "not converged" in layer.proved((4, 4, 4)).remark


def test_refusals_name_what_to_do() -> None:
    with pytest.raises(BronetError, match=r"groups of BROConv2d must divide .*, got 4 for 8 and 6 channels"):
        BROConv2d(8, 6, 3, groups=4)
    with pytest.raises(BronetError, match="needs 2 channels at least, in or out, in each group"):
        BROConv2d(4, 4, 3, groups=4)
    with pytest.raises(BronetError, match="dilation of LipschitzRegularizedConv2d must be 1"):
        LipschitzRegularizedConv2d(4, 4, 3, dilation=2, input_size=(8, 8))
    with pytest.raises(BronetError, match="multiple of the 2 groups, got 3"):
        Groups(MaxMin(), MaxMin())(torch.rand(1, 3, 2, 2))
    with pytest.raises(BronetError, match="must have Lipschitz layers"):
        Groups(nn.ReLU())
    for kind in (Scale, Standardization):
        for limit in (0.0, 1e-200, 1e200, math.nan, True):
            with pytest.raises(BronetError, match=f"limit of {kind.__name__} must be a number from"):
                kind(3, limit=limit)
