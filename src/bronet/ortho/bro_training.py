"""How a CPU computes a training step of a BRO convolution: by whichever of three forms takes the least time.

The form in space (`bro_in_space`) wins where n is small and the image large, complex matrices (`bro_by_frequency`)
where n is a quarter of the channels or more, and the real form, which a GPU takes, where all is small. The costs are
counts of multiplications and of bytes moved, fitted to 84 shapes on two cores (docs/speed.md); the choice for a shape
is the same on every machine.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from bronet.ortho.bro_by_frequency import FrequencyReflection
from bronet.ortho.bro_convolution import Geometry
from bronet.ortho.bro_evaluation import ByFactor, Shapes
from bronet.ortho.bro_in_space import SpatialReflection, fits
from bronet.ortho.products import is_traced, memoized
from bronet.ortho.real_dft import frequencies

# Nanoseconds on two cores: for a multiplication with an addition in each form's products, in its Fourier transform, and
# for a byte; then for what does not depend on sizes.
_SPACE_CONVOLUTION, _SPACE_TRANSFORM, _SPACE_INVERSE, _SPACE_SOLUTION, _SPACE_START = 0.0052, 0.4, 0.017, 0.009, 1.9e6
_FREQUENCY_PRODUCT, _FREQUENCY_TRANSFORM, _FREQUENCY_BYTE, _WEIGHT_BYTE = 0.0085, 0.007, 1.0, 0.4
_FREQUENCY_START, _FREQUENCIES_START = 2e4, 1.1e6
_REAL_PRODUCT, _REAL_INVERSE, _REAL_ENTRY, _REAL_START = 0.062, 0.0135, 0.75, 1.1e6

# Pixels of the grid up to which complex matrices follow a dense transform, and how much more the separable one copies.
_DENSE_PIXELS, _SEPARABLE_COPIES = 400, 2
_FLOAT = 4


@dataclass(frozen=True)
class TrainingForm:
    """x, V -> the BRO convolution of x, with a gradient of its own."""

    reflection: type[SpatialReflection] | type[FrequencyReflection]
    geometry: Geometry

    def __call__(self, x: Float[Tensor, "b c_in h w"], V: Float[Tensor, "c n k k"]) -> Float[Tensor, "b c_out h w"]:
        y: Tensor = self.reflection.apply(x, V, self.geometry)
        return y


def training_form(
    x: Float[Tensor, "b c_in h w"], V: Float[Tensor, "c n k k"], geometry: Geometry
) -> TrainingForm | None:
    """Return the form for images like x; None for the real form, as on a GPU and wherever a tool of torch follows."""
    windows = geometry.windows
    if x.device.type != "cpu" or is_traced() or windows.source != windows.target:
        return None
    shapes = Shapes(len(x), x.shape[1], geometry.c_out, V.shape[1], V.shape[2])
    return _cheapest(geometry, shapes, V.shape[3], x.dtype == V.dtype and not torch.compiler.is_compiling())


@memoized(256)
def _cheapest(geometry: Geometry, shapes: Shapes, taps_across: int, by_frequency: bool) -> TrainingForm | None:
    best, least = None, _real_cost(shapes, geometry)
    if fits(geometry, (shapes.taps, taps_across)) and (cost := _cost_in_space(shapes, geometry)) < least:
        best, least = TrainingForm(SpatialReflection, geometry), cost
    if by_frequency:
        grid = geometry.windows.source.grid
        transformed = replace(geometry, dense=grid[0] * grid[1] <= _DENSE_PIXELS)
        if _cost_by_frequency(shapes, transformed) < least:
            best = TrainingForm(FrequencyReflection, transformed)
    return best


def _real_cost(shapes: Shapes, geometry: Geometry) -> float:
    factor, c, n = ByFactor(geometry), max(shapes.c_in, shapes.c_out), shapes.rank
    f = factor.frequencies
    gram, entries = min((shapes.taps**2 * n) ** 2 * c, 4 * f * c * n**2), factor.entries(shapes)
    products = _REAL_PRODUCT * (factor.transform_work(shapes) + entries * shapes.images)
    return products + _REAL_ENTRY * entries + _REAL_INVERSE * (gram + 8 * f * n**3) + _REAL_START


def _cost_in_space(shapes: Shapes, geometry: Geometry) -> float:
    (H, W), pixels, n = geometry.windows.source.grid, ByFactor(geometry).pixels, shapes.rank
    f, c = H * (W // 2 + 1), max(shapes.c_in, shapes.c_out)
    convolutions = 3 * shapes.taps**2 * n * (shapes.c_in * H * W + shapes.c_out * pixels) * shapes.images
    transforms = 6 * H * W * (H * W).bit_length() * n * shapes.images
    inverse = 2 * (shapes.taps**2 * n) ** 2 * c + 4 * f * n**3
    return (
        _SPACE_CONVOLUTION * convolutions
        + _SPACE_TRANSFORM * transforms
        + _SPACE_INVERSE * inverse
        + _SPACE_SOLUTION * 12 * f * n**2 * shapes.images
        + _SPACE_START
    )


def _cost_by_frequency(shapes: Shapes, geometry: Geometry) -> float:
    """Return the cost with complex products counted as four real ones, and self-conjugate frequencies as a quarter."""
    source, dense = geometry.windows.source, geometry.dense
    (H, W), (h, w), b, n = source.grid, source.size, shapes.images, shapes.rank
    f, rows = len(frequencies(source.grid, dense=dense)), H * W if dense else 2 * (H // 2 + 1) * W
    both, c = shapes.c_in + shapes.c_out, max(shapes.c_in, shapes.c_out)
    of_weights = 3 * c * n**2 + 3 * n**3
    of_images = (16 * c + 4 * both) * n * b + 16 * n**2 * b
    transform = rows * h * w if dense else 2 * (H // 2 + 1) * (h + 2 * W) * w
    moved = _FREQUENCY_BYTE * b * c * (1 if dense else _SEPARABLE_COPIES) + _WEIGHT_BYTE * c * n
    return (
        _FREQUENCY_PRODUCT * rows / 2 * (of_weights + of_images)
        + _FREQUENCY_TRANSFORM * 2 * transform * both * b
        + _FLOAT * rows * moved
        + _FREQUENCY_START * f
        + _FREQUENCIES_START
    )
