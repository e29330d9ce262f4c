"""The judge between attack and certificate: the float64 program, at a point that is provably in the ball.

Attacks compute in float32 and overstep their budget by a rounding; certificates speak of the float64 program. So every
image that an attack returns is moved into the exact ball, its distance is rounded up, and the proved network decides.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bronet.errors import BronetError
from bronet.run.attack_rows import Norm

Logits = Callable[[Float[Tensor, "b *pixels"]], Float[Tensor, "b k"]]


class CertificateBrokenError(BronetError):
    """An image inside its certified radius changed its class: a bound, or a file of rows, is false."""


@dataclass(frozen=True)
class Verdict:
    """Of each image: the class at the attack's point, and upper bounds on the distances to that point."""

    prediction: Int[Tensor, " b"]
    l2: Float[Tensor, " b"]
    linf: Float[Tensor, " b"]


@torch.no_grad()
def judge(
    logits: Logits, images: Float[Tensor, "b *pixels"], found: Float[Tensor, "b *pixels"], *, norm: Norm, eps: float
) -> Verdict:
    """Return what the float64 program says of the images found, moved into the ball of radius eps."""
    start = images.double()
    point = into_ball(start, found.double(), norm=norm, eps=eps)
    l2, linf = distances(start, point)
    return Verdict(logits(point).argmax(dim=1), l2, linf)


def into_ball(
    images: Float[Tensor, "b *pixels"], found: Float[Tensor, "b *pixels"], *, norm: Norm, eps: float
) -> Float[Tensor, "b *pixels"]:
    """Return float64 points of [0, 1] within eps, in exact arithmetic: those found, or nearest to them.

    Guaranteed: the upper bound that `distances` gives is at most eps, unless eps is below rounding (then the image).
    """
    delta = found - images
    for _ in range(3):  # once shrinks, rounding may need a second time
        length = _length(delta, norm)
        shrink = torch.where(length > eps, eps * (1 - 2.0**-40) / length.clamp_min(torch.finfo(torch.float64).tiny), 1)
        delta = (images + per_image(shrink, delta) * delta).clamp(0, 1) - images
    point = images + delta
    inside = _length(point - images, norm) <= eps
    return torch.where(per_image(inside, point), point, images)


def distances(
    images: Float[Tensor, "b *pixels"], points: Float[Tensor, "b *pixels"]
) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
    """Return upper bounds on the l2 and l_inf distances of float64 images."""
    delta = points - images
    return _length(delta, "l2"), _length(delta, "linf")


def _length(delta: Float[Tensor, "b *pixels"], norm: Norm) -> Float[Tensor, " b"]:
    """Return the norm of computed differences, rounded up: each difference errs by u, the sum by far less."""
    rows = delta.flatten(1)
    length = torch.linalg.vector_norm(rows, dim=1) if norm == "l2" else rows.abs().amax(dim=1)
    return length * (1 + (rows.shape[1] + 8) * torch.finfo(torch.float64).eps)


def per_image(values: Tensor, like: Tensor) -> Tensor:
    """Return a view of one value for each image that multiplies or selects whole images."""
    return values.reshape(-1, *[1] * (like.ndim - 1))
