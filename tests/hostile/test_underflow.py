"""Promises about rounding hold where numbers are so small that their squares, or they themselves, vanish."""

from collections.abc import Iterator
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from bronet import Chain, prove
from bronet.layers import Bias, Centring, Flatten, LastLayerNormalized, LipschitzLayer, MaxMin, Normalization
from bronet.layers.lipnext import Position
from bronet.proof.proved_map import FLOAT32, FLOAT64, Product, ProvedMap, executed_in, linear_map

SIZES = [1e-40, 1e-100, 1e-154, 1e-170, 1e-250, 1e-300]
IMAGES = 50


@pytest.fixture
def flushing() -> Iterator[None]:
    """Subnormal numbers are set to zero, as some processors do."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor keeps subnormal numbers")
    yield
    torch.set_flush_denormal(False)


def exact_norm(x: list[Fraction]) -> Fraction:
    """An upper bound on the norm, tight to 2^-200 of it."""
    squares = sum((entry * entry for entry in x), Fraction(0))
    if squares == 0:
        return Fraction(0)
    scale = 2 ** (400 + 2 * max(0, squares.denominator.bit_length() - squares.numerator.bit_length()))
    root = squares * scale * scale
    guess = Fraction(int_root(int(root) + 1) + 1, scale)
    assert guess * guess >= squares
    return guess


def int_root(n: int) -> int:
    x = 1 << (n.bit_length() + 1) // 2
    while (y := (x + n // x) // 2) < x:
        x = y
    return x


def breaks(proved: ProvedMap, x: Tensor, exact: list[list[Fraction]]) -> list[int]:
    """The images for which the computed result errs by more than gain |x| + offset, in rational arithmetic."""
    computed = proved.apply(x)
    broken = []
    for index, (got, wanted, given) in enumerate(zip(computed, exact, x, strict=True)):
        flat = got.flatten().tolist()
        error = sum(((Fraction(a) - b) ** 2 for a, b in zip(flat, wanted, strict=True)), Fraction(0))
        size = exact_norm([Fraction(entry) for entry in given.flatten().tolist()])
        promised = Fraction(proved.gain) * size + Fraction(proved.offset)
        if error > promised * promised:
            broken.append(index)
    return broken


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["bias", "centring", "position", "normalisation", "head", "scale"])
def test_constants_whose_squares_vanish_keep_the_promise(kind: str, size: float) -> None:
    """A shift of norm below 1e-154 has computed norm zero; its rounding is not zero."""
    generator = torch.Generator().manual_seed(0)
    layers: dict[str, LipschitzLayer] = {
        "bias": Bias(3, dtype=torch.float64),
        "centring": Centring(3, dtype=torch.float64),
        "position": Position((1, 1), dtype=torch.float64),
        "normalisation": Normalization((0.0,) * 3, std=0.7, dtype=torch.float64),
        "head": LastLayerNormalized(3, 3, dtype=torch.float64),
    }
    draw = lambda *shape: size * torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    x = 1e-3 * draw(IMAGES, 3, 1, 1)
    given = [[Fraction(entry) for entry in row] for row in x.flatten(1).tolist()]
    if kind == "scale":
        module = nn.BatchNorm2d(3, dtype=torch.float64).eval()
        assert module.bias is not None
        with torch.no_grad():
            module.bias.copy_(draw(3))
        module.eps = 0.0
        (node,) = prove(nn.Sequential(module, nn.Flatten()), (3, 1, 1)).nodes[:1]
        constants = [Fraction(entry) for entry in module.bias.tolist()]
        exact = [[a + b for a, b in zip(row, constants, strict=True)] for row in given]
        assert breaks(node.proved, x, exact) == []
        return
    layer = layers[kind]
    with torch.no_grad():
        for tensor in (*layer.parameters(), *layer.buffers()):
            if tensor.ndim == 1 or kind == "position":
                tensor.copy_(draw(*tensor.shape))
    if isinstance(layer, LastLayerNormalized):
        with torch.no_grad():
            layer.weight.copy_(torch.eye(3))
        constants, x = [Fraction(entry) for entry in layer.bias.tolist()], x.flatten(1)
    elif isinstance(layer, Position):
        constants = [Fraction(float(layer.position.detach()))] * 3
    elif isinstance(layer, Normalization):
        constants = [-Fraction(entry) for entry in layer.mean.tolist()]
    else:
        assert isinstance(layer, (Bias, Centring))
        mean = layer.mean.tolist() if layer.mean is not None else [0.0] * 3
        constants = [Fraction(a - b) for a, b in zip(layer.bias.tolist(), mean, strict=True)]
    scale = 1 / Fraction(0.7) if kind == "normalisation" else Fraction(1)
    exact = [[(a + b) * scale for a, b in zip(row, constants, strict=True)] for row in given]
    assert breaks(layer.proved(tuple(x.shape[1:])), x, exact) == []


@pytest.mark.usefixtures("flushing")
@pytest.mark.parametrize("exponent", [200, 250, 290, 300])
def test_what_underflows_in_a_product_is_counted_where_the_next_one_enlarges_it(exponent: int) -> None:
    """Diagonal maps of 1e-e and 1e+e: their product has norm one, and everything between may vanish."""
    down = torch.diag(torch.full((3,), 10.0**-exponent, dtype=torch.float64))
    back = torch.diag(torch.full((3,), 10.0**exponent, dtype=torch.float64))
    products = [Product(norm, norm, 3) for norm in (10.0**-exponent * 1.01, 10.0**exponent * 1.01)]
    proved = linear_map(lambda x: (x @ down) @ back, (3,), products, 1.03)
    x = torch.rand(IMAGES, 3, dtype=torch.float64) * 10.0 ** -(308 - exponent)
    scale = Fraction(10.0**-exponent) * Fraction(10.0**exponent)
    exact = [[Fraction(entry) * scale for entry in row] for row in x.tolist()]
    assert bool((proved.apply(x) == 0).any())  # so it does vanish
    assert breaks(proved, x, exact) == []


def test_growth_behind_an_underflow_can_take_the_radius() -> None:
    """Where more could be lost than a margin, nothing is certified: what was once assumed is enforced."""
    small = linear_map(lambda x: x, (3,), [Product(1e-200, 1e-200, 3)], 1e-200)
    large = linear_map(lambda x: x, (3,), [Product(1e-200, 1e-200, 3), Product(1e280, 1e280, 3)], 1e80)
    assert small.offset < 1e-270
    assert large.offset > 1e8


def test_limits_that_float32_rounds_are_counted_there() -> None:
    """clamp(0.1) in float32 gives another number than 0.1, which the proof for float32 must allow for."""

    class Limited(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.pad(x.clamp(0.1, 0.3), (0, 1), value=0.7)

    x = torch.zeros(1, 2, dtype=torch.float64)
    for arithmetic in (FLOAT64, FLOAT32):
        with executed_in(arithmetic):
            (limit, padding) = (node.proved for node in prove(Limited(), (2,)).nodes)
        dtype = torch.float32 if arithmetic is FLOAT32 else torch.float64
        for proved, given in ((limit, x), (padding, x + 0.5)):
            error = (proved.apply(given.to(dtype)).double() - proved.apply(given)).norm()
            assert float(error) <= proved.gain * float(given.norm()) + proved.offset
            assert arithmetic is FLOAT64 or float(error) > 2.0**-42


def test_a_network_of_tiny_numbers_is_certified_as_ever() -> None:
    torch.manual_seed(0)
    model = Chain((1, 2, 2), {"flatten": Flatten(), "bias": Bias(4), "act": MaxMin()}, LastLayerNormalized(4, 3))
    with torch.no_grad():
        model.layers.bias.bias.fill_(1e-170)  # type: ignore[union-attr, operator]
    images = torch.rand(5, 1, 2, 2, dtype=torch.float64)
    certified = prove(model).certify(images)
    assert (certified.radius > 0).all()
    assert (certified.rounding < 1e-13).all()
