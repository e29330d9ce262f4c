"""LipNeXt and its variant with block reflectors beside BRONet: equal processor time, judged on held-out images.

Every network takes as many steps as fit into the budget at its own speed, measured before it trains, so that other
programs on the machine do not matter. Shares are proved, rounding counted, for training images that were held out.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from bronet.data import ImageSet
from bronet.errors import BronetError
from bronet.graph import prove
from bronet.models import CertifiableModel, build_model
from bronet.recipe import Recipe, named_recipe, override
from bronet.recipe.architecture import NAMED, Architecture, LipNeXtArchitecture
from bronet.recipe.schema import parse_budget
from bronet.training.run import split_images
from lab.bench.timed_training import Budget, train_for

DEVICE = torch.device("cpu")
TIMED_STEPS = 2
TIMED_SHARE = 0.05  # of the budget: how long the speed is measured
TRAINED, HELD_OUT = 8_000, 1_000
BATCH = 100


@dataclass(frozen=True, kw_only=True)
class Contest:
    """A data set with its recipe's changes, the networks and the learning rate of each, found on held-out images."""

    recipe: str
    changes: tuple[str, ...]
    networks: dict[str, tuple[Architecture, float]]


_DIGITS = LipNeXtArchitecture(depth=6, width=32, patch=2)
_SMALL = LipNeXtArchitecture(depth=8, width=64)
CONTESTS = {
    "digits": Contest(
        recipe="digits/quickstart",
        changes=("data.held_out=300", "certify.eps=[1/4,1/2,3/4]"),
        networks={
            "BRONet (digits)": (NAMED["bronet-digits"], 1e-2),
            "LipNeXt": (_DIGITS, 1e-2),
            "reflectors": (replace(_DIGITS, mixing="reflectors"), 1e-2),
        },
    ),
    "cifar10": Contest(
        recipe="cifar10/bronet-small",
        changes=(f"data.held_out={HELD_OUT}", "train.batch_size=128"),
        networks={
            "BRONet-S": (NAMED["bronet-s"], 5e-3),
            "BRONet (small)": (NAMED["bronet-small"], 5e-3),
            "LipNeXt": (_SMALL, 1e-2),
            "reflectors": (replace(_SMALL, mixing="reflectors"), 1e-2),
        },
    ),
}


@dataclass(frozen=True, kw_only=True)
class ContestRow:
    """What one training gave: shares of the held-out images, the three certified ones at the radii `eps`."""

    data: str
    network: str
    parameters: int
    seed: int
    learning_rate: float
    steps: int
    cpu_seconds: float
    images: int
    clean: float
    eps: str
    certified_1: float
    certified_2: float
    certified_3: float
    lipschitz: float

    @property
    def shares(self) -> tuple[float, float, float, float]:
        """Clean accuracy, then certified at the three radii."""
        return self.clean, self.certified_1, self.certified_2, self.certified_3


def contest_rows(data: str, *, seconds: float, seeds: list[int], data_dir: Path | None = None) -> Iterator[ContestRow]:
    """Train every network of a contest for so many seconds of processor time, and yield a row for each seed."""
    if data not in CONTESTS or not seconds > 0:
        raise BronetError(f"data must be {' or '.join(CONTESTS)} and seconds positive, got {data} and {seconds}")
    contest = CONTESTS[data]
    base = override(named_recipe(contest.recipe), list(contest.changes))
    kept, held = split_images(base.data, data_dir=data_dir)
    assert isinstance(kept, ImageSet)
    assert isinstance(held, ImageSet)
    kept = kept.subset(torch.arange(min(TRAINED, len(kept))))
    for seed in seeds:
        for name, (model, rate) in contest.networks.items():
            optim = replace(base.optim, name="manifold" if name == "LipNeXt" else "nadam", lr=rate)
            recipe = replace(base, model=model, optim=optim, train=replace(base.train, seed=seed))
            yield _row((data, name), recipe, kept, held, seconds)


def _row(names: tuple[str, str], recipe: Recipe, kept: ImageSet, held: ImageSet, seconds: float) -> ContestRow:
    def fresh() -> CertifiableModel:
        return build_model(recipe.model, recipe.data.spec(), seed=recipe.train.seed)

    steps = TIMED_STEPS
    for share in (0.0, TIMED_SHARE, 1.0):  # the first steps are slower than the others
        began = time.process_time()
        train_for(fresh(), recipe, kept, Budget(steps=steps))
        steps = max(TIMED_STEPS, round(share * seconds * steps / (time.process_time() - began)))
    began, model = time.process_time(), fresh()
    train_for(model, recipe, kept, Budget(steps=steps))
    spent = time.process_time() - began
    network = prove(model.eval())
    correct, radii = [], []
    for index in torch.arange(len(held)).split(BATCH):
        proved = network.certify(held.pixels(index, dtype=torch.float64))
        correct.append(proved.prediction == held.labels[index])
        radii.append(proved.radius)
    right, radius = torch.cat(correct), torch.cat(radii)
    certified = [float((right & (radius > parse_budget(eps))).double().mean()) for eps in recipe.certify.eps[:3]]
    return ContestRow(
        data=names[0],
        network=names[1],
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        seed=recipe.train.seed,
        learning_rate=recipe.optim.lr,
        steps=steps,
        cpu_seconds=round(spent, 1),
        images=len(held),
        clean=float(right.double().mean()),
        eps=" ".join(recipe.certify.eps[:3]),
        certified_1=certified[0],
        certified_2=certified[1],
        certified_3=certified[2],
        lipschitz=network.lipschitz,
    )
