"""CE, CE + CR and LA as functions of the probability p_t of the true class, and their derivatives (Figure 10).

With two classes the margin is m = log(p / (1 - p)), and

    CE       -log p                               derivative  -1 / p
    CE + CR  -log p - gamma max(m, 0)                         -1 / p - gamma / (p (1 - p))    where p > 1/2
    LA       -T (1 - p)^beta log p                            T beta (1 - p)^(beta - 1) log p - T (1 - p)^beta / p

LA's p_t is its own: the softmax of (z - xi y) / T. The same loss over the plain softmax q of the logits, which CE and
CR see, is p = sigmoid((log(q / (1 - q)) - xi) / T): the curve "LA, plain softmax". The paper does not say which of the
two it draws. What the figure shows: CR's derivative jumps at 1/2 and grows without bound at 1; LA's goes to 0 there.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from bronet.losses import PUBLISHED_GAMMA
from bronet.report.figures import COLOURS, GRID, QUIET, STYLE

TEMPERATURE, OFFSET, BETA = 0.75, 2.0, 5.0
"""T, xi and beta of the paper (App. B.4)."""
GAMMA = PUBLISHED_GAMMA
POINTS = 399
LOWEST_LOSS, HIGHEST_LOSS = -2.5, 4.0
LOWEST_DERIVATIVE = -12.0


class Curve(NamedTuple):
    """One loss: its value and its derivative at a probability."""

    value: Callable[[float], float]
    derivative: Callable[[float], float]


class Row(NamedTuple):
    """One point of one curve."""

    loss: str
    p: float
    value: float
    derivative: float


def margin(p: float) -> float:
    """Return the margin of two classes at which the true one has probability p."""
    return math.log(p) - math.log1p(-p)


def _la(p: float) -> float:
    return -TEMPERATURE * (1 - p) ** BETA * math.log(p)


def _la_derivative(p: float) -> float:
    return TEMPERATURE * BETA * (1 - p) ** (BETA - 1) * math.log(p) - TEMPERATURE * (1 - p) ** BETA / p


def _own(q: float) -> float:
    """Return LA's own probability where the plain softmax is q."""
    return 1 / (1 + math.exp(-(margin(q) - OFFSET) / TEMPERATURE))


def _own_derivative(q: float) -> float:
    p = _own(q)
    return p * (1 - p) / TEMPERATURE / (q * (1 - q))


CURVES: dict[str, Curve] = {
    "CE": Curve(lambda p: -math.log(p), lambda p: -1 / p),
    "CE + CR": Curve(
        lambda p: -math.log(p) - GAMMA * max(margin(p), 0.0),
        lambda p: -1 / p - (GAMMA / (p * (1 - p)) if p > 0.5 else 0.0),
    ),
    "LA": Curve(_la, _la_derivative),
    "LA, plain softmax": Curve(lambda q: _la(_own(q)), lambda q: _la_derivative(_own(q)) * _own_derivative(q)),
}


def measure(points: int = POINTS) -> list[Row]:
    """Return every curve at equally spaced probabilities strictly between 0 and 1."""
    grid = [(i + 1) / (points + 1) for i in range(points)]
    return [Row(name, p, curve.value(p), curve.derivative(p)) for name, curve in CURVES.items() for p in grid]


def draw(rows: Sequence[Row]) -> Figure:
    """Return Figure 10: the losses on the left, their derivatives on the right."""
    with rc_context(STYLE):
        figure = Figure(figsize=(9.6, 4.0), layout="constrained")
        left, right = figure.subplots(1, 2)
        for number, name in enumerate(CURVES):
            chosen = [row for row in rows if row.loss == name]
            p = np.array([row.p for row in chosen])
            look = {
                "color": COLOURS[min(number, 2)],
                "linestyle": (0, (4, 2)) if number > 2 else "-",
                "linewidth": 1.8 if number else 4.0,  # CE + CR lies on CE up to 1/2
            }
            left.plot(p, [row.value for row in chosen], label=name, **look)
            slope = np.array([row.derivative for row in chosen])
            jump = np.searchsorted(p, 0.5, side="right")
            # The jump at 1/2 is a gap, not a steep line.
            for part in (slice(None, jump), slice(jump, None)):
                right.plot(p[part], slope[part], label=name if part.start is None else None, **look)
        left.set(title="loss", xlabel="p of the true class", xlim=(0, 1), ylim=(LOWEST_LOSS, HIGHEST_LOSS))
        right.set(title="derivative", xlabel="p of the true class", xlim=(0, 1), ylim=(LOWEST_DERIVATIVE, 0.5))
        for axes in (left, right):
            axes.axvline(0.5, color=QUIET, linewidth=0.8, linestyle=(0, (2, 3)))
            axes.axhline(0, color=GRID, linewidth=1)
        left.legend(frameon=False)
    return figure
