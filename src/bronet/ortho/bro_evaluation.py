"""What evaluation keeps of a BRO convolution, and how it is applied: the form with the least work for the shapes.

A GPU keeps the factor Q. A CPU has four forms to choose from by a count of operations and of the bytes of weights read:
the factor; the two convolutions of `bro_in_space`, cheap where n is small; the matrix W of every frequency, cheap where
the image is small and n is not; and one matrix from all pixels to all pixels, for images of very few pixels. A product
with few columns takes five times as long as the same product written with few rows, so small batches are rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from bronet.ortho.bro_convolution import Geometry, apply_factor, images_of, pixels_of, reflector_factor
from bronet.ortho.bro_in_space import SpatialFactors, fits, reflect_in_space, spatial_factors
from bronet.ortho.products import has_fast_blas, memoized, product
from bronet.ortho.real_dft import frequencies
from bronet.ortho.spectrum import rows_of_channels

# Nanoseconds on two cores of Intel's, fitted to 18 shapes with one to 64 images (docs/speed.md): for a multiplication
# with an addition in a transform, in other products and in a convolution, for a byte of weights, and to begin. Weights
# are read while they are multiplied, so the longer of the two counts. Only ratios matter. Products of another BLAS than
# MKL on a processor of Intel's take longer.
_FACTOR_TRANSFORM, _FACTOR_PRODUCT, _FACTOR_BYTE, _FACTOR_START = 0.0113, 0.0101, 0.03, 1.4e5
_FREQUENCY_TRANSFORM, _FREQUENCY_PRODUCT, _FREQUENCY_BYTE, _FREQUENCY_START = 0.008, 0.0063, 0.035, 1.4e5
_PIXEL_PRODUCT, _PIXEL_BYTE, _PIXEL_START = 0.0068, 0.0153, 2.3e5
_SPACE_CONVOLUTION, _SPACE_TRANSFORM, _SPACE_PRODUCT, _SPACE_BYTE, _SPACE_START = 0.0053, 0.45, 0.0082, 0.05, 2.9e5
_SLOWER_PRODUCTS = 1.5
# A convolution of fewer channels takes as long as with so many.
_LEAST_CHANNELS = 8
_FLOAT, _COMPLEX = 4, 8
_FEW_IMAGES = 15

Weights = tuple[Tensor, ...]


class Shapes(NamedTuple):
    """The sizes that the work depends on, besides the grid: images, channels, n and the taps per axis."""

    images: int
    c_in: int
    c_out: int
    rank: int
    taps: int


@dataclass(frozen=True)
class Form(ABC):
    """A way to evaluate; forms that compare equal share their weights."""

    geometry: Geometry

    @abstractmethod
    def derive(self, V: Float[Tensor, "c n k k"], c_in: int) -> Weights:
        """Return what is kept, in V's precision."""

    @abstractmethod
    def apply(self, x: Float[Tensor, "b c_in h w"], weights: Weights) -> Float[Tensor, "b c_out h_out w_out"]:
        """Return the convolution of x."""

    @abstractmethod
    def cost(self, shapes: Shapes) -> float:
        """Return about how many nanoseconds it takes on two cores."""

    @property
    def pixels(self) -> int:
        """Pixels of the image."""
        return torch.Size(self.geometry.windows.source.size).numel()

    @property
    def frequencies(self) -> int:
        """How many frequencies the form computes with."""
        return len(frequencies(self.geometry.windows.source.grid, dense=self.geometry.dense))

    def transform_work(self, shapes: Shapes) -> int:
        """Return the multiplications of D and D' as products, by the height and then by the width unless D is dense."""
        (h, w), f = self.geometry.windows.source.size, self.frequencies
        rows = 2 * f * self.pixels if self.geometry.dense else 2 * f * (w + 2 * h)
        return rows * (shapes.c_in + shapes.c_out) * shapes.images


@dataclass(frozen=True)
class ByFactor(Form):
    """D'(u - 2 Q Q'u) with u = D x."""

    def derive(self, V: Tensor, c_in: int) -> Weights:
        return (reflector_factor(V, self.geometry),)

    def apply(self, x: Tensor, weights: Weights) -> Tensor:
        return images_of(apply_factor(pixels_of(x), weights[0], self.geometry), self.geometry.windows.target)

    def entries(self, shapes: Shapes) -> int:
        """Return how many numbers Q has, counted with the rows that are read twice."""
        return 4 * self.frequencies * (shapes.c_in + shapes.c_out) * shapes.rank

    def cost(self, shapes: Shapes) -> float:
        products = _slowness() * _FACTOR_PRODUCT * shapes.images
        each = max(products, 2 * _FLOAT * _FACTOR_BYTE)
        transform = _slowness() * _FACTOR_TRANSFORM * self.transform_work(shapes)
        return transform + self.entries(shapes) * each + _FACTOR_START


@dataclass(frozen=True)
class InSpace(Form):
    """E x - 2 V S^-1 V* x with V and V* as convolutions."""

    def derive(self, V: Tensor, c_in: int) -> Weights:
        return spatial_factors(V, self.geometry).between(c_in, self.geometry.c_out)

    def apply(self, x: Tensor, weights: Weights) -> Tensor:
        return reflect_in_space(x, SpatialFactors(*weights), self.geometry)

    def cost(self, shapes: Shapes) -> float:
        H, W = self.geometry.windows.source.grid
        n, f, taps = shapes.rank, H * (W // 2 + 1), shapes.taps**2
        c_in, inner = max(shapes.c_in, _LEAST_CHANNELS), max(n, _LEAST_CHANNELS)
        convolutions = taps * inner * (c_in * H * W + shapes.c_out * self.pixels) * _SPACE_CONVOLUTION
        transforms = 2 * H * W * (H * W).bit_length() * n * _SPACE_TRANSFORM
        work = convolutions + transforms + _slowness() * 4 * f * n**2 * _SPACE_PRODUCT
        weights = taps * n * (shapes.c_in + shapes.c_out) * _FLOAT + f * n**2 * _COMPLEX
        return max(work * shapes.images, weights * _SPACE_BYTE) + _SPACE_START


@dataclass(frozen=True)
class ByFrequency(Form):
    """D' W D with the matrix W of every frequency; for few images as rows, and then without the zeros of its copies."""

    few: bool

    def derive(self, V: Tensor, c_in: int) -> Weights:
        W = frequency_matrices(V, c_in, self.geometry)
        return (W[..., :c_in].mT.contiguous() if self.few else W,)

    def apply(self, x: Tensor, weights: Weights) -> Tensor:
        pixels = pixels_of(x)
        source, target = self.geometry.bases(pixels)
        u, (W,) = source.analysis(pixels), weights
        v = _complex_rows(u, W) if self.few else product(W, u)
        return images_of(target.synthesis(v), self.geometry.windows.target)

    def cost(self, shapes: Shapes) -> float:
        entries = self.frequencies * shapes.c_in * shapes.c_out
        products = _slowness() * _FREQUENCY_PRODUCT * 4 * shapes.images
        each = max(products, _FREQUENCY_BYTE * (_COMPLEX if self.few else 2 * _COMPLEX))
        transform = _slowness() * _FREQUENCY_TRANSFORM * self.transform_work(shapes)
        return transform + entries * each + _FREQUENCY_START


@dataclass(frozen=True)
class ByPixels(Form):
    """Matrices from pixels to pixels: three instead of four along an axis of two pixels (`_bilinear`)."""

    def derive(self, V: Tensor, c_in: int) -> Weights:
        W = frequency_matrices(V, c_in, self.geometry)
        source, target = (basis.factors()[0].unflatten(0, (-1, 2)) for basis in self.geometry.bases(W))
        blocks = W.unflatten(2, (2, c_in)).unflatten(1, (2, -1))
        pairs = torch.einsum("frp,frosi,fsq->pqio", target, blocks, source).flatten(0, 1)
        of_pairs = self._in_products(W)[0]
        return ((of_pairs @ pairs.flatten(1)).view(-1, *pairs.shape[1:]),)

    def apply(self, x: Tensor, weights: Weights) -> Tensor:
        (M,), pixels = weights, pixels_of(x)
        _, of_inputs, to_outputs = self._in_products(M)
        rows = (of_inputs @ pixels.flatten(1)).view(-1, *pixels.shape[1:]).mT
        y = product(rows, M)
        y = (to_outputs @ y.flatten(1)).view(-1, *y.shape[1:]).mT
        return images_of(y, self.geometry.windows.target)

    def _in_products(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return `_bilinear` of the image, of pairs of pixels, pixels and pixels, as matrices."""
        (R, A, C), (S, B, D) = (_bilinear(n, like.dtype) for n in self.geometry.windows.source.size)
        of_pairs = torch.einsum("rpq,suv->rspuqv", R, S).flatten(2).flatten(0, 1)
        return of_pairs, torch.kron(A, B), torch.kron(C, D)

    def cost(self, shapes: Shapes) -> float:
        h, w = (3 if n == 2 else n**2 for n in self.geometry.windows.source.size)
        entries = h * w * shapes.c_in * shapes.c_out
        each = max(_slowness() * _PIXEL_PRODUCT * shapes.images, _FLOAT * _PIXEL_BYTE)
        return entries * each + _PIXEL_START


@memoized(16)
def _bilinear(n: int, dtype: torch.dtype) -> tuple[Float[Tensor, "r n n"], Float[Tensor, "r n"], Float[Tensor, "n r"]]:
    """Return R, A, C with y = C (R W)(A x), product by product, for y_i = sum of W_ij x_j, W_ij the same on diagonals.

    For n = 2, y_0 = W_00 (x_0 + x_1) + (W_01 - W_00) x_1 and y_1 = W_00 (x_0 + x_1) + (W_10 - W_00) x_0.
    """
    if n != 2:
        R = torch.eye(n * n, dtype=dtype).view(-1, n, n)
        return R, R.sum(1), R.sum(2).mT.contiguous()
    R = torch.tensor([[[1, 0], [0, 0]], [[-1, 1], [0, 0]], [[-1, 0], [1, 0]]], dtype=dtype)
    A, C = torch.tensor([[1, 1], [0, 1], [1, 0]], dtype=dtype), torch.tensor([[1, 1, 0], [1, 0, 1]], dtype=dtype)
    return R, A, C


def _slowness() -> float:
    return 1.0 if has_fast_blas() else _SLOWER_PRODUCTS


def evaluation_form(x: Float[Tensor, "b c_in h w"], V: Float[Tensor, "c n k k"], geometry: Geometry) -> Form:
    """Return the form for images like x; the same for the same shapes on the same machine."""
    if x.device.type != "cpu":
        return ByFactor(geometry)
    return _cheapest(geometry, Shapes(len(x), x.shape[1], geometry.c_out, V.shape[1], V.shape[2]), V.shape[3])


@memoized(256)
def _cheapest(geometry: Geometry, shapes: Shapes, taps_across: int) -> Form:
    return min(_forms(geometry, shapes, (shapes.taps, taps_across)), key=lambda form: form.cost(shapes))


def _forms(geometry: Geometry, shapes: Shapes, taps: tuple[int, int]) -> Iterator[Form]:
    yield ByFactor(geometry)
    yield ByFrequency(dense := replace(geometry, dense=True), shapes.images <= _FEW_IMAGES)
    if geometry.windows.source == geometry.windows.target:
        yield ByPixels(dense)
    if fits(geometry, taps):
        yield InSpace(geometry)


def frequency_matrices(V: Float[Tensor, "c n k k"], c_in: int, geometry: Geometry) -> Float[Tensor, "f two_out two_in"]:
    """Return E - 2 Q Q' at every frequency, as real blocks [[Re W, -Im W], [Im W, Re W]]."""
    Q = reflector_factor(V, geometry)
    W = rows_of_channels(Q, geometry.c_out) @ rows_of_channels(Q, c_in).mT
    blocks = W.mul_(-2).unflatten(2, (2, c_in)).unflatten(1, (2, -1))
    for part in (0, 1):
        blocks[:, part, :, part].diagonal(dim1=1, dim2=2).add_(1)
    return W


def _complex_rows(u: Float[Tensor, "f two_in b"], W: Float[Tensor, "f c_in two_out"]) -> Float[Tensor, "f two_out b"]:
    """Return W u for W given as (Re W, Im W) transposed, side by side."""
    f, b = len(u), u.shape[2]
    rows = u.unflatten(1, (2, -1)).mT.reshape(f, 2 * b, -1)
    re, im = (rows @ W).view(f, 2, b, 2, -1).unbind(1)
    v = torch.stack((re[:, :, 0] - im[:, :, 1], re[:, :, 1] + im[:, :, 0]), dim=1)
    return v.mT.flatten(1, 2)
