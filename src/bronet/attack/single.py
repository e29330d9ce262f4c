"""One image under attack, for somebody who watches: L2-PGD on the prediction, judged in float64, then drawn nearer.

What is found is an upper bound on the distance to another class, as the certified radius is a lower one. Finding
nothing proves nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bronet.attack.judge import Logits, distances, into_ball, per_image
from bronet.attack.pgd import l2_pgd
from bronet.graph.network import ProvedNetwork
from bronet.layers import frozen
from bronet.models import CertifiableModel

Progress = Callable[[int, int], None]
HALVINGS = 24
"""Steps of the search along the segment: its last step is far below a visible difference."""


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


def attack_prediction(
    model: CertifiableModel,
    network: ProvedNetwork,
    image: Float[Tensor, "1 c h w"],
    *,
    eps: float,
    steps: int,
    restarts: int,
    seed: int = 0,
    progress: Progress | None = None,
) -> Finding:
    """Search the ball of radius eps for a point where the float64 program leaves its prediction.

    Guaranteed: the point lies in [0, 1] and within eps of the image, in exact arithmetic. If the class changes there,
    the point is the nearest of its segment to the image that a bisection finds. `progress` is called with the number of
    passes done and of all; what it raises ends the search.
    """
    proved = network.certify(image)
    passes, done = restarts * (steps + 1) + 1, 0

    def counted(pixels: Tensor) -> Tensor:
        nonlocal done
        if progress is not None:
            progress(done, passes)
        done += 1
        return model(pixels)

    generator = torch.Generator().manual_seed(seed)
    with frozen(model):
        search = l2_pgd(
            counted, image.float(), proved.prediction, eps=eps, steps=steps, restarts=restarts, generator=generator
        )
    exact = image.double()
    point = into_ball(exact, search.images.double(), norm="l2", eps=eps)
    point = drawn_nearer(network.logits, exact, point, proved.prediction)
    with torch.no_grad():
        found = int(network.logits(point).argmax(dim=1))
    distance = float(distances(exact, point)[0])
    return Finding(point, int(proved.prediction), found, distance, float(proved.radius))


@torch.no_grad()
def drawn_nearer(
    logits: Logits, images: Float[Tensor, "b *pixels"], points: Float[Tensor, "b *pixels"], labels: Int[Tensor, " b"]
) -> Float[Tensor, "b *pixels"]:
    """Return for each point of another class than its label one nearer to its image, on the segment between them.

    Guaranteed: a point returned has another class than its label if the point given has; other points are returned as
    they are. Not guaranteed: the nearest of the segment, where its classes alternate.
    """
    best = points
    low, high = torch.zeros(len(images), dtype=torch.float64), torch.ones(len(images), dtype=torch.float64)
    low, high = low.to(images.device), high.to(images.device)
    wrong = logits(points).argmax(dim=1) != labels
    for _ in range(HALVINGS if bool(wrong.any()) else 0):
        middle = (low + high) / 2
        tried = (images + per_image(middle, images) * (points - images)).clamp(0, 1)
        still = wrong & (logits(tried).argmax(dim=1) != labels)
        best = torch.where(per_image(still, images), tried, best)
        low, high = torch.where(still, low, middle), torch.where(still, middle, high)
    return best
