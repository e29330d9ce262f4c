"""Running bounds on rounding through a graph of proved maps, at the image and in its ball.

For the values x_i that meet in a map, the exact ones move by at most lipschitz_i r within the distance r of the image;
the computed ones err by at most `at_image` at the image, and by `at_ball + ball_slope r` in the ball. Since
hypot(a + b r) <= hypot(a) + hypot(b) r, every bound stays linear in r, however the distances are joined.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor

from bronet.proof.proved_map import NORM_UNDERFLOW, UNDERFLOW, Join, ProvedMap, arithmetic, gamma_of_proof, up

# Per-image scalars are products and sums of a few positive numbers for each layer; this outweighs their rounding.
TENSOR_SLACK = 1 + 2.0**-44


@dataclass(frozen=True)
class Budget:
    """Bounds on one value, or on several that a map takes together.

    Their error is at most `at_image` at the image, and at most `at_ball + ball_slope r` at points within r. `size`
    bounds the norm of what was computed at the image, `elsewhere + growth r` that of what is computed within r: the
    values at the image, their errors and their movements. Up to the distance `reach` nothing overflows.
    """

    at_image: Float[Tensor, " b"]
    at_ball: Float[Tensor, " b"]
    ball_slope: Float[Tensor, " b"]
    size: Float[Tensor, " b"]
    elsewhere: Float[Tensor, " b"]
    growth: Float[Tensor, " b"]
    reach: Float[Tensor, " b"]

    @classmethod
    def of_images(cls, images: Float[Tensor, "b ..."]) -> "Budget":
        """Return the bounds of the images themselves."""
        size = norm_rounded_up(images)
        zero = torch.zeros_like(size)
        return cls(zero, zero, zero, size, size, zero + 1, torch.full_like(zero, arithmetic().largest))

    @classmethod
    def together(cls, inputs: Sequence["Budget"], join: Join) -> "Budget":
        """Return the bounds of several values together, distances and errors joined as the map joins them, norms added.

        Those of a single value are its own, to the bit.
        """
        joined = _sum if join is Join.SUM else _root_of_squares
        return cls(
            reduce(joined, [value.at_image for value in inputs]),
            reduce(joined, [value.at_ball for value in inputs]),
            reduce(joined, [value.ball_slope for value in inputs]),
            reduce(_sum, [value.size for value in inputs]),
            reduce(_sum, [value.elsewhere for value in inputs]),
            reduce(_sum, [value.growth for value in inputs]),
            reduce(torch.minimum, [value.reach for value in inputs]),
        )

    def after(self, layer: ProvedMap, output: Tensor, lipschitz: float) -> "Budget":
        """Return the bounds of what a map has computed; `lipschitz` bounds the constant from the image to there."""
        L, gain, offset = layer.lipschitz, layer.gain, layer.offset
        size = norm_rounded_up(output)
        at_image = (L * self.at_image + gain * self.size + offset) * TENSOR_SLACK
        at_ball = (L * self.at_ball + gain * self.elsewhere + offset) * TENSOR_SLACK
        slope = (L * self.ball_slope + gain * self.growth) * TENSOR_SLACK + UNDERFLOW
        elsewhere, growth = size + at_image + at_ball, lipschitz + slope
        return Budget(at_image, at_ball, slope, size, elsewhere, growth, self.reach_within(layer))

    def reach_within(self, layer: ProvedMap) -> Float[Tensor, " b"]:
        """Return a distance from the image within which nothing in this map or an earlier one can overflow."""
        unit, largest = arithmetic().unit, arithmetic().largest
        sums = max(layer.lipschitz, max(layer.gain, layer.offset) / unit)
        free = (largest - self.elsewhere) / self.growth / TENSOR_SLACK
        reach = torch.minimum(self.reach, free if sums < largest else torch.zeros_like(free))
        return reach.clamp_min(0).nan_to_num(0.0)  # a norm that is not finite has no reach


def joined_constant(constants: Sequence[float], join: Join) -> float:
    """Return an upper bound on the joined constants of several inputs; that of a single one is its own."""
    if len(constants) == 1:
        return constants[0]
    if join is Join.SUM:
        return up(sum(constants))
    largest = max(constants)
    return up(largest * sum((constant / largest) ** 2 for constant in constants) ** 0.5) if largest > 0 else 0.0


def norm_rounded_up(x: Tensor) -> Float[Tensor, " b"]:
    """Return an upper bound on the norm of every image's activations."""
    # In the order of its memory, as flattening would copy; a CPU takes half as long for this as for `vector_norm`.
    norm = x.square().sum(dim=tuple(range(1, x.ndim))).sqrt()
    return norm * (1 + gamma_of_proof(x.shape[1:].numel() + 2)) + NORM_UNDERFLOW


def _sum(a: Tensor, b: Tensor) -> Tensor:
    return (a + b) * TENSOR_SLACK


def _root_of_squares(a: Tensor, b: Tensor) -> Tensor:
    """Return an upper bound on the root of a^2 + b^2; the smaller over the larger one cannot overflow."""
    larger = torch.maximum(a, b)
    ratio = torch.where(larger > 0, torch.minimum(a, b) / larger, 0.0)
    return larger * (1 + ratio.square()).sqrt() * TENSOR_SLACK
