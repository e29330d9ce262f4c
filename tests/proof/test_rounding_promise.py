"""Every layer keeps its promise |fl f(x) - f(x)| <= gain |x| + offset, judged in extended precision."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from bronet.layers import (
    BROConv2d,
    BROLinear,
    Householder,
    L2NormPool,
    LastLayerNormalized,
    LipschitzLayer,
    Normalization,
)
from bronet.ortho.real_dft import Window, is_dense, real_dft
from bronet.ortho.spd import unit_scaled
from bronet.ortho.spectrum import rows_of_channels, spectrum_blocks
from bronet.proof.reflector import dense_factor, orthonormal_factor
from hostile import LAYERS, hostile
from jacobian import jacobian

Wide = np.ndarray
IMAGES = 20

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(
        np.finfo(np.longdouble).eps > 2.0**-60, reason="longdouble is no wider than float64 on this platform"
    ),
]


def wide(x: Tensor) -> Wide:
    return x.detach().double().numpy().astype(np.longdouble)


def _dense_bro(layer: LipschitzLayer, x: Wide) -> Wide:
    assert isinstance(layer, BROLinear)
    Q = wide(dense_factor(layer.V(torch.float64).detach(), ridge=layer.ridge))
    low_rank = (x @ Q[: layer.in_features]) @ Q[: layer.out_features].T
    embedded = np.zeros((len(x), layer.out_features), dtype=np.longdouble)
    kept = min(layer.in_features, layer.out_features)
    embedded[:, :kept] = x[:, :kept]
    return embedded - 2 * low_rank


def _matrix(layer: LipschitzLayer, x: Wide) -> Wide:
    """Products with unit vectors do not round, so the Jacobian is the matrix as stored (biases are zero)."""
    shape = x.shape[1:]
    return x.reshape(len(x), -1) @ wide(jacobian(layer.proved(shape).apply, shape)).T


def _normalization(layer: LipschitzLayer, x: Wide) -> Wide:
    assert isinstance(layer, Normalization)
    return (x - wide(layer.mean)[:, None, None]) / np.longdouble(layer.std)


def _pool(layer: LipschitzLayer, x: Wide) -> Wide:
    assert isinstance(layer, L2NormPool)
    b, c, h, w = x.shape
    p = layer.patch
    return np.sqrt((x.reshape(b, c, h // p, p, w // p, p) ** 2).sum((3, 5)))


def _householder(layer: LipschitzLayer, x: Wide) -> Wide:
    assert isinstance(layer, Householder)
    half = layer.angles.detach().double() / 2
    rest = (1,) * (x.ndim - 2)
    a, b = np.split(x, 2, axis=1)
    sines, cosines = (wide(values).reshape(len(half), -1, *rest) for values in (half.sin(), half.cos()))
    for sin, cos in zip(sines, cosines, strict=True):
        t = 2 * np.minimum(sin * a - cos * b, 0)
        a, b = a - t * sin, b + t * cos
    return np.concatenate((a, b), axis=1)


def _bro_convolution(layer: LipschitzLayer, x: Wide) -> Wide:
    """Square, cropped layers only: x - 2 D'Q Q'D x with the stored D and Q."""
    assert isinstance(layer, BROConv2d)
    h, w = x.shape[2:]
    p = layer.padding
    grid = (h + 2 * p, w + 2 * p)
    dense = is_dense(grid, torch.device("cpu"))
    A = spectrum_blocks(unit_scaled(layer.V(torch.float64).detach()), grid, dense=dense)
    Q = wide(rows_of_channels(orthonormal_factor(A, A.mT @ A, ridge=layer.ridge), x.shape[1]))
    whole = real_dft(Window(grid, grid), dense=dense, dtype=torch.float64, device=torch.device("cpu"))
    factors = [wide(factor) for factor in whole.cropped(Window(grid, (h, w), (p, p))).factors()]
    c, b = x.shape[1], len(x)
    pixels = x.transpose(2, 3, 1, 0).reshape(h, w * c * b)
    if dense:
        (D,) = factors
    else:
        height, width = factors
        # Rows (height frequency, width frequency, re/im), columns (h, w).
        D = np.einsum("fri,grj->fgij", height.reshape(-1, 2, h), width.reshape(len(width), 2, w)).reshape(-1, h * w)
    u = (D @ pixels.reshape(h * w, c * b)).reshape(-1, 2 * c, b)
    v = Q @ (Q.transpose(0, 2, 1) @ u)
    low_rank = (D.T @ v.reshape(D.shape[0], c * b)).reshape(h, w, c, b)
    return x - 2 * low_rank.transpose(3, 2, 0, 1)


EXACT: dict[str, Callable[[LipschitzLayer, Wide], Wide]] = {
    "bro dense": _dense_bro,
    "bro dense wide": _dense_bro,
    "bro dense tall": _dense_bro,
    "cholesky": _matrix,
    "cholesky wide": _matrix,
    "convolution": _matrix,
    "convolution strided": _matrix,
    "normalised head": _matrix,
    "rotation": _matrix,
    "rotation shifted": _matrix,
    "normalisation": _normalization,
    "l2 pool": _pool,
    "householder": _householder,
    "householder twice": _householder,
    "bro convolution": _bro_convolution,
    "bro convolution residual": _bro_convolution,
    "bro convolution separable": _bro_convolution,
}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("kind", ["normal", "rank deficient", "mixed scales"])
def test_rounding_stays_within_the_promise(name: str, kind: str) -> None:
    layer, shape = hostile(name, kind, 0), LAYERS[name][1]
    if isinstance(layer, LastLayerNormalized):
        torch.nn.init.zeros_(layer.bias)
    proved = layer.proved(shape)
    x = torch.randn(IMAGES, *shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    with torch.no_grad():
        computed = wide(proved.apply(x)).reshape(IMAGES, -1)
    error = np.sqrt(((computed - EXACT[name](layer, wide(x)).reshape(IMAGES, -1)) ** 2).sum(1))
    size = np.sqrt((wide(x).reshape(IMAGES, -1) ** 2).sum(1))
    assert (error <= proved.gain * size + proved.offset).all()
    assert (error > 0).any(), "the reference has no more digits than what it judges"
