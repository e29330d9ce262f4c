"""What is attacked, and with what: the float32 network gives gradients, the float64 program judges.

On a GPU the search computes in half precision, several times faster, replays what it recorded, and asks about round
numbers of images. An image that it takes for broken and the judge does not is searched again in float32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bronet.attack.auto import autoattack
from bronet.attack.half import in_half_precision
from bronet.attack.judge import Norm, Verdict, judge
from bronet.attack.pgd import l2_pgd, linf_pgd
from bronet.attack.preflight import preflight
from bronet.attack.recorded import recorded
from bronet.attack.round_numbers import in_round_numbers
from bronet.certificates.network import Certificate, ProvedNetwork
from bronet.data import ImageSet
from bronet.errors import BronetError
from bronet.models import CertifiableModel
from bronet.ortho.numerics import float32_products
from bronet.recipe.schema import check_seed, parse_budget
from bronet.run.attack_rows import AttackRow

AttackName = Literal["autoattack", "pgd"]
PREFLIGHT_IMAGES = 64


@dataclass(frozen=True, kw_only=True)
class AttackPlan:
    """What to attack with; an attack goes on only under the same plan."""

    attack: AttackName = "autoattack"
    norm: Norm = "l2"
    eps: str = "36/255"
    split: str = "test"
    steps: int = 100
    restarts: int = 5
    seed: int = 0
    batch_size: int = 250

    def __post_init__(self) -> None:
        if not parse_budget(self.eps, name="eps") > 0:
            raise BronetError(f"eps must be positive to attack, got {self.eps}")
        if self.batch_size < 1:
            raise BronetError(f"batch_size must be at least 1, got {self.batch_size}")
        check_seed(self.seed)

    @property
    def name(self) -> str:
        """The stem of the two files."""
        return f"attack-{self.attack}-{self.norm}-{self.eps.replace('/', '_')}"


@dataclass(frozen=True)
class Target:
    """A trained network, its proof, images, and the radii that its certificate records (by index)."""

    model: CertifiableModel
    network: ProvedNetwork
    images: ImageSet
    claims: dict[int, float]

    def warnings(self) -> list[str]:
        """Return why an attack on this network could mean nothing."""
        first = torch.arange(min(PREFLIGHT_IMAGES, len(self.images)))
        judged = self.network.certify(self._pixels(first, torch.float64)).prediction
        return preflight(self.model, self._pixels(first, torch.float32), self._labels(first), judged)

    def attack(self, plan: AttackPlan, index: Int[Tensor, " b"]) -> list[AttackRow]:
        """Return the rows of these images."""
        exact, labels = self._pixels(index, torch.float64), self._labels(index)
        proved = self.network.certify(exact)
        verdict = self._worst(plan, exact, labels, first=int(index[0]))
        radius = self._radius(index, proved)
        columns = (index, labels, proved.prediction, verdict.prediction, verdict.l2, verdict.linf, radius)
        return [
            AttackRow(
                index=i,
                label=label,
                prediction=prediction,
                found=seen,
                robust=prediction == label == seen,
                l2=l2,
                linf=linf,
                radius=claim,
            )
            for i, label, prediction, seen, l2, linf, claim in zip(*(c.tolist() for c in columns), strict=True)
        ]

    def _worst(self, plan: AttackPlan, exact: Tensor, labels: Tensor, *, first: int) -> Verdict:
        """Return the judge's verdict on what was found near the images.

        Rounding to float32 moves an image; the judge measures from the exact one.
        """
        images, eps = exact.float(), parse_budget(plan.eps)
        coarse = self._searched(in_half_precision(self.model))
        found = self._search(coarse, plan, images, labels, first=first)
        with torch.no_grad():
            taken_for_broken = coarse(found).argmax(dim=1) != labels
        verdict = judge(self.network.logits, exact, found, norm=plan.norm, eps=eps)
        misled = taken_for_broken & (verdict.prediction == labels)
        if misled.any():
            fine = self._searched(self.model)
            with float32_products(tf32=False):
                found[misled] = self._search(fine, plan, images[misled], labels[misled], first=first)
            verdict = judge(self.network.logits, exact, found, norm=plan.norm, eps=eps)
        return verdict

    def _search(
        self, model: Callable[[Tensor], Tensor], plan: AttackPlan, images: Tensor, labels: Tensor, *, first: int
    ) -> Tensor:
        eps = parse_budget(plan.eps)
        if plan.attack == "autoattack":
            classes = len(self.images.classes)
            return autoattack(model, images, labels, classes=classes, norm=plan.norm, eps=eps, seed=plan.seed + first)
        pgd = l2_pgd if plan.norm == "l2" else linf_pgd
        generator = torch.Generator().manual_seed(plan.seed + first)
        search = pgd(model, images, labels, eps=eps, steps=plan.steps, restarts=plan.restarts, generator=generator)
        return search.images

    def _searched(self, model: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Return the model as a search calls it fastest."""
        device = self.images.images.device
        if device.type != "cuda":
            return model
        return in_round_numbers(recorded(model, device) if self.model.recordable else model)

    def _radius(self, index: Int[Tensor, " b"], proved: Certificate) -> Float[Tensor, " b"]:
        """Return the radius that is claimed: recorded in the run's certificate, else proved now."""
        own = proved.radius.tolist()
        claimed = [self.claims.get(i, radius) for i, radius in zip(index.tolist(), own, strict=True)]
        return proved.radius.new_tensor(claimed)

    def _pixels(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        return self.images.pixels(index, dtype=dtype)

    def _labels(self, index: Tensor) -> Tensor:
        return self.images.labels[index.to(self.images.labels.device)]
