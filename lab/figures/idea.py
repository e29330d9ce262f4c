"""The idea in three drawings: what layers do to distances, where balls of proof come from, and what a margin buys."""

from functools import cache

import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from torch import Tensor, nn

from bronet.graph import prove
from bronet.layers import Bias, BROLinear, MaxMin
from lab.figures.canvas import HUES, INK, LINE, PAPER, SOFT, STYLE, WIDTH, fill, stroke, svg
from lab.figures.point_networks import (
    LipschitzNetwork,
    Points,
    Proof,
    lipschitz_proof,
    ordinary_proof,
    three_arms,
    trained_lipschitz,
    trained_ordinary,
)

LAYERS = 4
RING = 0.02
"""So small that no MaxMin folds it: what is seen is the stretching alone."""
SIDE = 241
"""Points of the grid per side on which classes are drawn."""
SHOWN_POINT = 17
"""The point whose margin is drawn."""
DIRECTIONS = 72
FURTHEST = 0.32


def rings(layers: list[nn.Module]) -> list[Tensor]:
    """Return a small circle around a point, and the point last, behind 0, 1, 2, ... layers; its radius is the unit."""
    angle = torch.linspace(0, 2 * torch.pi, 121, dtype=torch.float64)
    centre = torch.tensor([[0.6, -0.4]], dtype=torch.float64)
    x = torch.cat([centre + RING * torch.stack([angle.cos(), angle.sin()], 1), centre])
    found = [x]
    with torch.no_grad():
        for layer in layers:
            found.append(layer(found[-1]))
    return [ring / RING for ring in found]


def plain_layers() -> list[nn.Module]:
    """Return layers with the usual random weights (Kaiming), one draw of them."""
    torch.manual_seed(390)
    built: list[nn.Module] = []
    for _ in range(LAYERS):
        linear = nn.Linear(2, 2, dtype=torch.float64)
        nn.init.kaiming_normal_(linear.weight)
        built.append(nn.Sequential(linear, MaxMin()))
    return built


def orthogonal_layers() -> list[nn.Module]:
    """Return reflections with random axes and shifts."""
    torch.manual_seed(5)
    built: list[nn.Module] = []
    for _ in range(LAYERS):
        shift = Bias(2, dtype=torch.float64)
        nn.init.normal_(shift.bias, std=0.4)
        built.append(nn.Sequential(BROLinear(2, 2, rank=1, dtype=torch.float64), shift, MaxMin()))
    return built


def stretch(ring: Tensor) -> float:
    """Return the largest distance of the ring from its centre: by how much the layers stretch here."""
    return float((ring[:-1] - ring[-1]).norm(dim=1).max())


def draw_stretch() -> str:
    """Draw a ball of images behind more and more layers, ordinary and orthogonal ones."""
    with torch.random.fork_rng(devices=[]):
        rows = [
            ("ordinary layers", "orange", rings(plain_layers())),
            ("orthogonal layers", "blue", rings(orthogonal_layers())),
        ]
    reach = 1.08 * max(stretch(ring) for _, _, found in rows for ring in found)
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 3.5))
        grid = figure.subplots(2, LAYERS + 1)
        figure.subplots_adjust(left=0.05, right=0.995, top=0.93, bottom=0.01, wspace=0.04, hspace=0.04)
        for number, (line, (name, hue, found)) in enumerate(zip(grid, rows, strict=True)):
            for depth, (axes, ring) in enumerate(zip(line, found, strict=True)):
                x, y = (ring[:-1] - ring[-1]).unbind(1)
                axes.add_patch(Circle((0, 0), 1, facecolor="none", edgecolor=SOFT, linestyle=(0, (3, 2)), linewidth=1))
                axes.fill(x, y, facecolor=fill(hue), edgecolor=stroke(hue), linewidth=1.6)
                axes.plot([0, x[0]], [0, y[0]], color=stroke(hue), linewidth=1.2)
                axes.plot(0, 0, "o", color=INK, markersize=3)
                axes.set(xlim=(-reach, reach), ylim=(-reach, reach), xticks=[], yticks=[], aspect="equal")
                for spine in axes.spines.values():
                    spine.set_color(LINE)
                axes.text(0, -0.86 * reach, f"reaches {stretch(ring):.2f} r", ha="center", size=8, color=SOFT)
                if number == 0:
                    title = {0: "input: radius r", 1: "1 layer"}.get(depth, f"{depth} layers")
                    axes.set_title(title, size=9, color=INK, pad=5)
            line[0].set_ylabel(name, size=9, color=stroke(hue), weight="bold", labelpad=6)
        return svg(figure, "stretch")


def draw_regions(points: Points, proofs: list[tuple[str, Proof]]) -> str:
    """Draw the classes over the plane, and around every point the ball in which its class is proved constant."""
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 4.5))
        panels = figure.subplots(1, 2)
        figure.subplots_adjust(left=0.01, right=0.99, top=0.88, bottom=0.01, wspace=0.03)
        for axes, (title, proof) in zip(panels, proofs, strict=True):
            _regions(axes, points, proof)
            axes.set_title(title, size=9.5, color=INK, pad=7, linespacing=1.4)
        return svg(figure, "regions")


def _regions(axes: Axes, points: Points, proof: Proof) -> None:
    classes = proof.grid_class.view(SIDE, SIDE).numpy()
    ticks = torch.linspace(0, 1, SIDE).numpy()
    for number, hue in enumerate(HUES[:3]):
        axes.contourf(ticks, ticks, (classes == number).astype(float), levels=[0.5, 2], colors=[fill(hue)])
    for number, hue in enumerate(HUES[:3]):
        mine = (points.label == number) & proof.correct
        pairs = zip(points.x[mine].tolist(), proof.radius[mine].tolist(), strict=True)
        balls = [Circle((centre[0], centre[1]), radius) for centre, radius in pairs]
        axes.add_collection(PatchCollection(balls, facecolor="none", edgecolor=stroke(hue), linewidth=0.9))
        x, y = points.x[points.label == number].T
        axes.scatter(x, y, s=16, color=stroke(hue), edgecolor=PAPER, linewidth=0.7, zorder=3)
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[], aspect="equal")
    for spine in axes.spines.values():
        spine.set_color(LINE)


def draw_margin(model: LipschitzNetwork, points: Points) -> str:
    """Draw the margin of one point along many directions, above the line that no direction can cross."""
    network = prove(model)
    x = points.images[SHOWN_POINT]
    certificate = network.certify(x[None])
    t, radius = int(certificate.prediction), float(certificate.radius)
    distance = torch.linspace(0, FURTHEST, 161, dtype=torch.float64)
    curves = []
    for angle in torch.linspace(0, 2 * torch.pi, DIRECTIONS + 1, dtype=torch.float64)[:-1]:
        way = torch.stack([angle.cos(), angle.sin()])[:, None, None]
        logits = network.logits(x + distance[:, None, None, None] * way)
        others = logits.clone()
        others[:, t] = -torch.inf
        curves.append(logits[:, t] - others.amax(1))
    margin = float(certificate.margin)
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 3.5))
        axes = figure.subplots()
        figure.subplots_adjust(left=0.095, right=0.985, top=0.97, bottom=0.14)
        axes.axhline(0, color=INK, linewidth=0.8)
        for curve in curves:
            axes.plot(distance, curve, color=SOFT, linewidth=0.6, alpha=0.7)
        axes.plot([], [], color=SOFT, linewidth=0.9, label=f"margin of the network along {DIRECTIONS} directions")
        line = margin * (1 - distance / radius)
        axes.plot(
            distance, line, color=stroke("blue"), linewidth=2, label="guarantee: no direction can fall faster than this"
        )
        axes.axvspan(0, radius, color=fill("blue"), zorder=0, linewidth=0)
        axes.plot(radius, 0, "o", color=stroke("blue"), markersize=6, zorder=4)
        axes.annotate(
            f"certified radius {radius:.3f}",
            (radius, 0),
            xytext=(-8, -22),
            textcoords="offset points",
            ha="right",
            color=stroke("blue"),
            size=9.5,
            weight="bold",
        )
        axes.set(xlim=(0, FURTHEST), ylim=(-0.6 * margin, 1.85 * margin))
        axes.set_xlabel("distance r from the image")
        axes.set_ylabel("lead of the predicted class")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="upper left", fontsize=8.5)
        return svg(figure, "margin")


@cache
def scene() -> tuple[Points, LipschitzNetwork, nn.Sequential]:
    """Return the points and the two networks trained on them, which takes a few seconds, once."""
    points = three_arms()
    return points, trained_lipschitz(points), trained_ordinary(points)


def draw_idea() -> dict[str, str]:
    """Return the three drawings by name."""
    points, lipschitz, ordinary = scene()
    proofs = [ordinary_proof(ordinary, points, side=SIDE), lipschitz_proof(lipschitz, points, side=SIDE)]
    titles = [
        f"ordinary network, bound {proofs[0].bound:.0f}\nmedian proved radius {float(proofs[0].radius.median()):.3f}",
        f"Lipschitz network, bound {proofs[1].bound:.0f}\nmedian proved radius {float(proofs[1].radius.median()):.3f}",
    ]
    return {
        "stretch": draw_stretch(),
        "regions": draw_regions(points, list(zip(titles, proofs, strict=True))),
        "margin": draw_margin(lipschitz, points),
    }
