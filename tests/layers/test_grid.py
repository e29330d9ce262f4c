"""Every configuration in which another library tests its convolutions: it is built here, or refused in one line.

The numbers are those of orthogonium's tests (`test_orthogonality_conv.py` and `..._transpose.py`): 354 convolutions and
108 transposed ones. Here a wrapped image takes no padding, a kernel that is as large as its stride is one pixel of the
patches, and a transposed convolution returns `stride` times the image.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from torch.testing import assert_close

from bronet import BronetError
from bronet.layers import CONVOLUTIONS, AnyConvolution, BROConvTranspose2d
from bronet.layers.convolution import PaddingMode
from jacobian import jacobian

pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass(frozen=True)
class Configuration:
    kernel: int
    c_in: int
    c_out: int
    stride: int = 1
    groups: int = 1
    dilation: int = 1
    transposed: bool = False

    @property
    def side(self) -> int:
        """The side of images: a multiple of stride and dilation."""
        return self.stride * self.dilation * max(1, 4 // (self.stride * self.dilation))

    def make(self, kind: str, padding_mode: PaddingMode) -> AnyConvolution:
        if self.transposed:
            return BROConvTranspose2d(
                self.c_in,
                self.c_out,
                1 if self.kernel == self.stride else self.kernel,
                stride=self.stride,
                groups=self.groups,
            )
        return CONVOLUTIONS[kind](
            self.c_in,
            self.c_out,
            1 if self.kernel == self.stride and CONVOLUTIONS[kind].unshuffles else self.kernel,
            stride=self.stride,
            groups=self.groups,
            dilation=self.dilation,
            padding_mode=padding_mode,
            input_size=(self.side, self.side) if kind == "lipreg" else None,
        )


def grid() -> Iterator[Configuration]:
    """Return the configurations, test by test."""
    kernels, eight, groups = (1, 3, 5), (8, 16), (1, 2, 4)
    for k, c_in, c_out, s, g in product(kernels, eight, eight, (1, 2), groups):
        yield Configuration(k, c_in, c_out, s, g)
    for k, c_in, c_out, g in product((2, 3, 4, 5), eight, eight, groups):
        yield Configuration(k, c_in, c_out, 1, g, 2)
    for k, c_in, c_out, d, g in product((2, 3, 4, 5), eight, eight, (2, 3), groups):
        yield Configuration(k, c_in, c_out, 2, g, d)
    for k, c_in, c_out, s in product((3, 4, 5), (2, 4, 32), (2, 4, 32), (2, 4)):
        yield Configuration(k, c_in, c_out, s)
    for k, c_in, c_out, g in product((2, 4), eight, eight, groups):
        yield Configuration(k, c_in, c_out, 1, g)
    for k, c_in, c_out, g in product((1, 2), (4, 8, 32), (4, 8, 32), (1, 2)):
        yield Configuration(k, c_in, c_out, k, g)
    for k, c_in, c_out, s in product(kernels, (1, 2), (1, 2), (1, 2)):
        yield Configuration(k, c_in, c_out, s)
    for k, c_in, c_out, s, g in product((1, 2, 3), (4, 8, 16), (4, 8, 32), (1, 2), (1, 2)):
        yield Configuration(k, c_in, c_out, s, g, transposed=True)


GRID = list(grid())
NONLINEAR = ("cpl", "sll", "sandwich")
SLOW = ("soc", "sll")
"""Kinds whose proofs take a second each: every fifth configuration."""


def refusal(c: Configuration, kind: str = "bro", padding_mode: PaddingMode = "circular") -> str:
    """Return why it is refused; empty where it is built and right: its shape, and a bound above the norm."""
    torch.manual_seed(0)
    try:
        layer = c.make(kind, padding_mode).double()
    except BronetError as error:
        return str(error)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.3)
    layer.eval()
    shape, side = (c.c_in, c.side, c.side), c.side * c.stride if c.transposed else c.side // c.stride
    proved, x = layer.proved(shape), torch.randn(2, *shape, dtype=torch.float64)
    with torch.no_grad():
        y = layer(x)
    assert y.shape == (2, c.c_out, side, side)
    assert proved.output_shape == y.shape[1:]
    assert_close(proved.apply(x), y)
    if kind in NONLINEAR:
        stretch = (y[0] - y[1]).norm() / (x[0] - x[1]).norm()
    else:
        stretch = torch.linalg.matrix_norm(jacobian(layer, shape), 2)
    assert float(stretch) <= proved.lipschitz * (1 + 1e-12), c  # the Jacobian rounds
    return ""


def test_the_grid_is_the_one_that_was_counted() -> None:
    assert len(GRID) == 462
    assert sum(c.transposed for c in GRID) == 108
    assert sum(not c.transposed and (c.groups > 1 or c.dilation > 1) for c in GRID) == 226


def of_one_channel(c: Configuration) -> bool:
    return c.c_in * (1 if c.transposed else c.stride**2) == c.groups == c.c_out


@pytest.mark.parametrize("c", GRID[::9], ids=str)
def test_a_sample_of_the_grid_is_built(c: Configuration) -> None:
    why = refusal(c)
    assert ("2 channels at least" in why) if of_one_channel(c) else not why


@pytest.mark.slow
def test_all_but_three_of_the_grid_are_built() -> None:
    """A reflector of a single channel is no layer, whatever its kernel."""
    refused = {c: why for c in GRID if (why := refusal(c))}
    assert len(refused) == 3
    assert all(of_one_channel(c) and "\n" not in why for c, why in refused.items())


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in CONVOLUTIONS if kind != "bro"])
def test_every_kind_builds_the_grid_or_says_in_one_line_why_not(kind: str) -> None:
    padding_mode = CONVOLUTIONS[kind].padding_modes[-1]
    known = ("must be odd", "dilation of LipschitzRegularizedConv2d must be 1", "input_size must be at least")
    for c in GRID[:: 5 if kind in SLOW else 1]:
        if not c.transposed:
            why = refusal(c, kind, padding_mode)
            assert not why or ("\n" not in why and any(words in why for words in known)), (c, why)
