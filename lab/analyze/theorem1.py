"""Theorem 1 measured: the margin risk against its lower bound, as the Lipschitz constant shrinks.

With probability 1 - delta over a sample S of n images, for every network f of a class F,

    R_tau(f) >= P_e - 2 Rad_S(F_tau) - 3 sqrt(ln(2 / delta) / (2 n)),

R_tau the mean ramp loss on S, P_e the probability of a wrong prediction, Rad_S the empirical Rademacher complexity.
(The paper has ln(1 / delta); the theorem it rests on, Mohri et al. 2018, Theorem 3.3, has ln(2 / delta).)

Let F be all networks of K classes whose margins have a Lipschitz constant of at most L. Write each ramp loss as its
value at a fixed image x_0, a number in [0, 1] that depends on the label only, plus a change of at most
(L / tau) |x_i - x_0|. A label with n_y images adds at most E max(sum of n_y signs, 0) <= sqrt(n_y) / 2, and so

    Rad_S(F_tau) <= min(1/2, L / (tau n) sum_i |x_i - x_0| + sqrt(K / n) / 2),

1/2 being what losses in [0, 1] can reach at all. x_0 is the mean image. This is the paper's last inequality with its
assumption on f(0) removed; it is far from tight.

For each L, a small network of block reflectors is trained on the digits, its outputs scaled so that its margins have
that (proved) constant. P_e is estimated on the test images. With true labels P_e is small, and the bound is below 0 and
says nothing until L is tiny; so the same is done with part of the labels drawn at random, in training and test images
alike.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from matplotlib import rc_context
from matplotlib.figure import Figure
from torch import Tensor

from bronet.data import Batch, ImageSet, generator_for, load_dataset
from bronet.errors import BronetError
from bronet.graph import prove
from bronet.losses import logit_annealing, ramp
from bronet.models import CertifiableModel, build_model
from bronet.recipe.architecture import StackArchitecture
from bronet.recipe.schema import check_seed, dataset_spec
from bronet.report.figures import COLOURS, GRID, QUIET, STYLE
from bronet.training.loop import Learner, training_loop

LIPSCHITZ = tuple(4.0**k for k in range(2, -5, -1))
NETWORK = StackArchitecture(layer="bro", widths=(16, 16, 32), kernels=(3, 3, 3), strides=(1, 2, 1))
LEARNING_RATE = 1e-2


@dataclass(frozen=True, kw_only=True)
class TheoremSetting:
    """Margin tau, failure probability delta, constants L, shares of random labels, training steps and batch, seed."""

    tau: float = 1.0
    delta: float = 0.05
    lipschitz: tuple[float, ...] = LIPSCHITZ
    noise: tuple[float, ...] = (0.0, 0.5)
    steps: int = 150
    batch: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.tau < math.inf or not 0 < self.delta < 1:
            raise BronetError(f"tau must be positive and finite and 0 < delta < 1, got {self.tau} and {self.delta}")
        if not self.lipschitz or any(not 0 < constant < math.inf for constant in self.lipschitz):
            raise BronetError(f"lipschitz must be positive and finite constants, got {list(self.lipschitz)}")
        if any(not 0 <= share <= 1 for share in self.noise):
            raise BronetError(f"noise must lie in [0, 1], got {list(self.noise)}")
        if self.steps < 1 or self.batch < 1:
            raise BronetError(f"steps and batch must be at least 1, got {self.steps} and {self.batch}")
        check_seed(self.seed)


class Row(NamedTuple):
    """What one trained network gave: the constant of its margins, risk, error on test images, both terms, the bound."""

    noise: float
    lipschitz: float
    risk: float
    error: float
    rademacher: float
    confidence: float
    bound: float


def rademacher_bound(distances: Float[Tensor, " n"], *, lipschitz: float, tau: float, classes: int) -> float:
    """Return the upper bound on Rad_S(F_tau) from the distances |x_i - x_0|."""
    n = len(distances)
    smooth = lipschitz / tau * float(distances.double().mean())
    return min(0.5, smooth + math.sqrt(classes / n) / 2)


def confidence_term(n: int, delta: float) -> float:
    """Return 3 sqrt(ln(2 / delta) / (2 n))."""
    return 3 * math.sqrt(math.log(2 / delta) / (2 * n))


def measure(setting: TheoremSetting, progress: Callable[[int], None] | None = None) -> list[Row]:
    """Train one network per constant and share of random labels, and return what was measured."""
    rows = []
    for noise in setting.noise:
        train, test = (_with_noise(load_dataset("digits", split), noise, setting.seed) for split in ("train", "test"))
        x = train.pixels(torch.arange(len(train)))
        distances = (x - x.mean(dim=0)).flatten(1).norm(dim=1)
        confidence = confidence_term(len(train), setting.delta)
        for lipschitz in setting.lipschitz:
            model, scale = _trained(train, lipschitz, setting)
            with torch.no_grad():
                risk = float(ramp(scale * model(x), train.labels, tau=setting.tau))
                predicted = model(test.pixels(torch.arange(len(test)))).argmax(dim=1)
            error = float((predicted != test.labels).double().mean())
            rad = rademacher_bound(distances, lipschitz=lipschitz, tau=setting.tau, classes=len(train.classes))
            rows.append(Row(noise, lipschitz, risk, error, rad, confidence, error - 2 * rad - confidence))
            if progress is not None:
                progress(len(rows))
    return rows


def _with_noise(images: ImageSet, share: float, seed: int) -> ImageSet:
    """Return the images with a share of their labels drawn anew from all classes."""
    generator = generator_for(seed, "label-noise", len(images))
    count = len(images)
    drawn = torch.randint(0, len(images.classes), (count,), generator=generator)
    chosen = torch.rand(count, generator=generator) < share
    labels: Int64[Tensor, " n"] = torch.where(chosen, drawn, images.labels)
    return ImageSet(images.name, images.images, labels, images.classes, images.scale)


def _trained(images: ImageSet, lipschitz: float, setting: TheoremSetting) -> tuple[CertifiableModel, float]:
    """Return a network and the factor with which its margins have the Lipschitz constant, proved, at most."""
    model = build_model(NETWORK, dataset_spec("digits"), seed=setting.seed)
    training_loop(_ScaledNetwork(model, lipschitz), _batches(images, setting), steps_per_epoch=setting.steps)
    network = prove(model.eval())
    return model, lipschitz / (network.lipschitz * float(network.gaps.max()))


def _batches(images: ImageSet, setting: TheoremSetting) -> Iterator[Batch]:
    for step in range(setting.steps):
        index = torch.randperm(len(images), generator=generator_for(setting.seed, "theorem1", step))[: setting.batch]
        yield Batch(images.pixels(index), images.labels[index])


class _ScaledNetwork(Learner):
    """A network that learns by Adam, its outputs scaled so that its margins have a given Lipschitz constant."""

    def __init__(self, model: CertifiableModel, lipschitz: float) -> None:
        self.model, self.lipschitz = model, lipschitz
        self.optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)

    def step(self, batch: Batch, number: int) -> None:
        # The reflectors are 1-Lipschitz, so the head's gaps alone are the margins' constant in training.
        scale = self.lipschitz / self.model.head.gaps().detach().max()
        loss = logit_annealing(scale * self.model(batch.pixels), batch.labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def draw(rows: Sequence[Row]) -> Figure:
    """Return a panel per share of random labels: risk, error and the bound over a falling Lipschitz constant."""
    shares = sorted({row.noise for row in rows})
    with rc_context(STYLE):
        figure = Figure(figsize=(4.9 * len(shares), 4.0), layout="constrained")
        panels = figure.subplots(1, len(shares), sharey=True, squeeze=False)[0]
        for axes, share in zip(panels, shares, strict=True):
            chosen = [row for row in rows if row.noise == share]
            constants = [row.lipschitz for row in chosen]
            axes.plot(constants, [row.risk for row in chosen], "o-", color=COLOURS[0], label="margin risk, training")
            axes.plot(constants, [row.error for row in chosen], "s--", color=QUIET, label="error, test")
            bound = [row.bound for row in chosen]
            axes.plot(constants, bound, "^-", color=COLOURS[1], label="lower bound of Theorem 1")
            axes.axhline(0, color=QUIET, linewidth=0.8)
            axes.set(xscale="log", xlabel="Lipschitz constant of the margins", ylim=(-1.15, 1.1))
            axes.set_title("true labels" if share == 0 else f"{100 * share:.0f} % of the labels at random")
            axes.invert_xaxis()
            axes.grid(axis="y", color=GRID, linewidth=0.8)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, frameon=False, fontsize=10, loc="outside lower center", ncols=3)
    return figure
