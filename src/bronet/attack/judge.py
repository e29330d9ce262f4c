"""The judge between attack and certificate: the float64 program, at a point that is provably in the ball.

Attacks compute in float32 and overstep their budget by a rounding; certificates speak of the float64 program. So every
image that an attack returns is moved into the exact ball, its distance is rounded up, and the proved network decides.

`attack_image` attacks one image for somebody who watches, and draws what it found nearer. That distance is an upper
bound on the distance to another class, as the certified radius is a lower one. Finding nothing proves nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from bronet.attack.search import TINY, l2_pgd, per_image
from bronet.certificates.run import Progress
from bronet.errors import BronetError
from bronet.run.attack_rows import Norm

Logits = Callable[[Float[Tensor, "b *pixels"]], Float[Tensor, "b k"]]
HALVINGS = 24
"""Steps of the search along a segment: the last is far below a visible difference."""


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
        shrink = torch.where(length > eps, eps * (1 - 2.0**-40) / length.clamp_min(TINY), 1)
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


@dataclass(frozen=True)
class Finding:
    """The strongest point of a search, as the float64 program judges it.

    `found` is the class at `point`, which is at most `distance` away from the image; `radius` is the certified one.
    """

    point: Float[Tensor, "1 c h w"]
    prediction: int
    found: int
    distance: float
    radius: float

    @property
    def success(self) -> bool:
        """Whether the class changed."""
        return self.found != self.prediction

    @property
    def refutes(self) -> bool:
        """Whether the certificate is false: another class at a distance below the certified radius."""
        return self.success and self.distance < self.radius


def attack_image(
    model: nn.Module,
    logits: Logits,
    image: Float[Tensor, "1 c h w"],
    label: Int[Tensor, " 1"],
    *,
    radius: float,
    eps: float,
    steps: int,
    restarts: int,
    progress: Progress,
) -> Finding:
    """Search the ball of radius eps for a point to which `logits`, the float64 program, gives another class.

    Guaranteed: the point lies in [0, 1] and within eps of the image, in exact arithmetic. If the class changes there,
    the point is the nearest of its segment to the image that a bisection finds. `progress` is called with the number of
    passes done and of all; what it raises ends the search.
    """
    passes, done = restarts * (steps + 1) + 1, 0

    def counted(pixels: Tensor) -> Tensor:
        nonlocal done
        progress(done, passes)
        done += 1
        return model(pixels)

    start, generator = image.to(next(model.parameters()).dtype), torch.Generator().manual_seed(0)
    search = l2_pgd(counted, start, label, eps=eps, steps=steps, restarts=restarts, generator=generator)
    point = drawn_nearer(logits, image, into_ball(image, search.images.double(), norm="l2", eps=eps), label)
    with torch.no_grad():
        found = int(logits(point).argmax(dim=1))
    return Finding(point, int(label), found, float(distances(image, point)[0]), radius)


@torch.no_grad()
def drawn_nearer(
    logits: Logits, images: Float[Tensor, "b *pixels"], points: Float[Tensor, "b *pixels"], labels: Int[Tensor, " b"]
) -> Float[Tensor, "b *pixels"]:
    """Return for each point of another class than its label one nearer to its image, on the segment between them.

    Guaranteed: a point returned has another class than its label if the point given has; other points are returned as
    they are. Not guaranteed: the nearest of the segment, where its classes alternate.
    """
    best = points
    low = torch.zeros(len(images), dtype=torch.float64, device=images.device)
    high = torch.ones_like(low)
    wrong = logits(points).argmax(dim=1) != labels
    for _ in range(HALVINGS if bool(wrong.any()) else 0):
        middle = (low + high) / 2
        tried = (images + per_image(middle, images) * (points - images)).clamp(0, 1)
        still = wrong & (logits(tried).argmax(dim=1) != labels)
        best = torch.where(per_image(still, images), tried, best)
        low, high = torch.where(still, low, middle), torch.where(still, middle, high)
    return best
