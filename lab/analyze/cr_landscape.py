"""The landscape of the CR term around trained weights (Figure 11).

    z = L_CR(x, w + omega_1 d_1 + omega_2 d_2),   L_CR = -gamma mean(max(M_f(x), 0)),
    d_1 = sign(grad_w L_CR),   d_2 Rademacher: +1 or -1 with probability 1/2 for every weight

over a grid of omega. Where the margin M_f is not positive the term is off, and the landscape flat; at that edge its
gradient jumps. The paper does not name x: we take the correct image with the smallest margin, at which the edge passes
closest to the trained weights (or several such images). Only weights that training changes are moved.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from matplotlib import rc_context
from matplotlib.figure import Figure
from torch import Tensor

from bronet.data import ImageSet
from bronet.errors import BronetError
from bronet.losses import PUBLISHED_GAMMA, certificate_risk, logit_margin
from bronet.models import CertifiableModel
from bronet.recipe.schema import check_seed
from bronet.report.figures import INK, STYLE

BATCH = 250
TICKS = 4


@dataclass(frozen=True, kw_only=True)
class LandscapeSetting:
    """The grid: `points` by `points` values of omega in [-extent, extent]; how many images; the seed of d_2."""

    extent: float = 0.02
    points: int = 31
    images: int = 1
    gamma: float = PUBLISHED_GAMMA
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.extent < math.inf:
            raise BronetError(f"extent must be positive and finite, got {self.extent}")
        if self.points < 3 or self.points % 2 == 0:
            raise BronetError(
                f"points must be odd and at least 3 (the trained weights are the middle), got {self.points}"
            )
        if self.images < 1:
            raise BronetError(f"images must be at least 1, got {self.images}")
        check_seed(self.seed)


class Row(NamedTuple):
    """One point of the grid."""

    omega_1: float
    omega_2: float
    cr: float
    margin: float


def choose(model: CertifiableModel, images: ImageSet, count: int) -> Int[Tensor, " n"]:
    """Return the `count` correctly classified images with the smallest margins."""
    margins = []
    with torch.no_grad():
        for index in torch.arange(len(images)).split(BATCH):
            margins.append(logit_margin(model(images.pixels(index)), images.labels[index]))
    margin = torch.cat(margins)
    correct = int((margin > 0).sum())
    if correct < count:
        raise BronetError(f"images must be at most the {correct} that the network classifies correctly, got {count}")
    return margin.where(margin > 0, torch.inf).argsort()[:count]


def measure(
    model: CertifiableModel, images: ImageSet, setting: LandscapeSetting, progress: Callable[[int], None] | None = None
) -> list[Row]:
    """Return the CR term and the smallest margin at every point of the grid; the model is left as it was."""
    index = choose(model, images, setting.images)
    x, labels = images.pixels(index), images.labels[index]
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    first, second = directions(model, x, labels, setting)
    trained = [weight.detach().clone() for weight in weights]
    grid = np.linspace(-setting.extent, setting.extent, setting.points).tolist()
    rows = []
    try:
        with torch.no_grad():
            for a in grid:
                for b in grid:
                    for weight, home, d1, d2 in zip(weights, trained, first, second, strict=True):
                        weight.copy_(home + a * d1 + b * d2)
                    logits = model(x)
                    term = float(certificate_risk(logits, labels, gamma=setting.gamma))
                    rows.append(Row(a, b, term, float(logit_margin(logits, labels).min())))
                if progress is not None:
                    progress(len(rows))
    finally:
        with torch.no_grad():
            for weight, home in zip(weights, trained, strict=True):
                weight.copy_(home)
    return rows


def directions(
    model: CertifiableModel, x: Float[Tensor, "b c h w"], labels: Int[Tensor, " b"], setting: LandscapeSetting
) -> tuple[list[Tensor], list[Tensor]]:
    """Return d_1, the sign of the CR term's gradient, and d_2, Rademacher, one tensor per weight each."""
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    term = certificate_risk(model(x), labels, gamma=setting.gamma)
    gradients = torch.autograd.grad(term, weights, allow_unused=True)
    first = [
        torch.zeros_like(weight) if gradient is None else gradient.sign()
        for weight, gradient in zip(weights, gradients, strict=True)
    ]
    generator = torch.Generator().manual_seed(setting.seed)
    second = [
        (2 * torch.randint(0, 2, weight.shape, generator=generator) - 1).to(weight.dtype).to(weight.device)
        for weight in weights
    ]
    return first, second


def draw(rows: Sequence[Row]) -> Figure:
    """Return Figure 11: the surface on the left, its contours and the edge of the term on the right."""
    a = np.array(sorted({row.omega_1 for row in rows}))
    shape = (len(a), len(a))
    z = np.array([row.cr for row in rows]).reshape(shape)
    margin = np.array([row.margin for row in rows]).reshape(shape)
    x, y = np.meshgrid(a, a, indexing="ij")
    with rc_context(STYLE):
        figure = Figure(figsize=(10.0, 4.4), layout="constrained")
        surface = figure.add_subplot(1, 2, 1, projection="3d")
        surface.plot_surface(x, y, z, cmap="viridis", linewidth=0, antialiased=True, rstride=1, cstride=1)
        surface.set(xlabel="sign of the gradient", ylabel="Rademacher", title="CR term")
        surface.tick_params(labelsize=7)
        surface.view_init(elev=32, azim=-60)
        surface.set_box_aspect(None, zoom=0.85)  # room for the labels
        plane = figure.add_subplot(1, 2, 2)
        filled = plane.contourf(x, y, z, levels=20, cmap="viridis")
        if margin.min() < 0 < margin.max():
            plane.contour(x, y, margin, levels=[0.0], colors="#c2410c", linewidths=1.8)
            plane.plot([], [], color="#c2410c", label="margin 0: the term switches on")
        plane.plot(0, 0, "o", color="white", markeredgecolor=INK, markersize=6, label="trained weights")
        plane.set(xlabel="omega_1, sign of the gradient", ylabel="omega_2, Rademacher")
        for axes in (surface, plane):
            axes.locator_params(axis="x", nbins=TICKS)
            axes.locator_params(axis="y", nbins=TICKS)
        plane.legend(loc="upper right", fontsize=8.5, framealpha=0.9)
        figure.colorbar(filled, ax=plane)
    return figure
