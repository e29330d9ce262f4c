"""The certified radius: its one definition, for training statistics, certificates, attacks and reports.

Section 2 and App. B.2 of the paper: an image of predicted class t keeps its class inside the l2 ball whose
radius is the minimum over j of (f_t - f_j) / gap[t, j], where gap[t, j] bounds the Lipschitz constant of
f_t - f_j. A head with normalised rows has gap[t, j] = L |w_t - w_j|; any other head the constant sqrt(2) L.

The radius is a proof only if the entries of `gap_lipschitz` are proved bounds and the rounding of the network
is passed in as `slack` and `slope`; from estimates it is an estimate.
"""

import math
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bronet.errors import BronetError

SAFETY_ULPS = 2
"""Every operation below is moved this many machine epsilons to the safe side: more than its own rounding."""


class Radius(NamedTuple):
    """Prediction, logit margin to the runner-up, and certified radius of each image."""

    prediction: Int[Tensor, " b"]
    margin: Float[Tensor, " b"]
    radius: Float[Tensor, " b"]


def targeted_radii(
    logits: Float[Tensor, "b k"],
    gap_lipschitz: Float[Tensor, "k k"],
    *,
    slack: Float[Tensor, "b k"] | None = None,
    slope: Float[Tensor, "b k"] | None = None,
) -> Float[Tensor, "b k"]:
    """Return a lower bound on the distance to each class j from the predicted class t, and +inf at j = t.

    Guaranteed: the entry is at most (f_t - f_j - slack_j) / (gap[t, j] + slope_j), because each operation is
    rounded to the safe side; a tie gives 0; a row with a logit that is not finite is 0 throughout; a gap that
    is NaN, infinite or negative gives 0; a gap of 0 under a positive margin gives +inf. Differentiable in the
    logits and in the gap. Not guaranteed: anything about the gap itself, or how the logits were rounded.

    `slack` and `slope` are the rounding budgets of a proof: an amount lost from each margin, and an amount
    lost per unit of distance.
    """
    classes = logits.shape[1]
    if classes < 2:
        raise BronetError(f"logits must have at least 2 classes, got {classes}")
    dtype = torch.promote_types(torch.promote_types(logits.dtype, gap_lipschitz.dtype), torch.float32)
    logits = logits.to(dtype)
    shift = SAFETY_ULPS * torch.finfo(dtype).eps
    down, up = 1 - shift, 1 + shift

    prediction = logits.argmax(dim=1)
    margin = (logits.gather(1, prediction[:, None]) - logits) * down
    if slack is not None:
        margin = (margin - slack) * down
    steepness = gap_lipschitz.to(dtype)[prediction]
    if slope is not None:
        steepness = (steepness + slope) * up

    own = torch.arange(classes, device=logits.device) == prediction[:, None]
    divisible = (steepness > 0) & steepness.isfinite() & ~own
    # The inner `where` keeps the gradient of the unused branch finite.
    quotient = margin / torch.where(divisible, steepness, 1.0) * down
    unreachable = own | ((steepness == 0) & (margin > 0))
    radii = torch.where(divisible & (margin > 0), quotient, torch.where(unreachable, torch.inf, 0.0))
    return torch.where(logits.isfinite().all(dim=1, keepdim=True), radii, 0.0)


def margin_radius(
    logits: Float[Tensor, "b k"],
    gap_lipschitz: Float[Tensor, "k k"],
    *,
    slack: Float[Tensor, "b k"] | None = None,
    slope: Float[Tensor, "b k"] | None = None,
) -> Radius:
    """Return prediction, margin and radius of each image; the radius is the least of `targeted_radii`.

    Guaranteed: what `targeted_radii` guarantees, for all classes at once. The margin is the plain difference
    of the two largest logits: `slack` is not subtracted from it.
    """
    radii = targeted_radii(logits, gap_lipschitz, slack=slack, slope=slope)
    top = logits.topk(2, dim=1).values
    return Radius(logits.argmax(dim=1), top[:, 0] - top[:, 1], radii.amin(dim=1))


def certified_at(radius: Float[Tensor, " b"], correct: Bool[Tensor, " b"], eps: float) -> Bool[Tensor, " b"]:
    """Return which images are certified at eps: correctly classified, with a radius larger than eps."""
    return correct & (radius > eps)


def implied_radius(radius: float, *, norm: Literal["l2", "linf", "l1"], pixels: int) -> float:
    """Return the radius in another norm that an l2 radius implies, rounded down.

    |x|_2 <= |x|_1 and |x|_2 <= sqrt(pixels) |x|_inf, so the l_1 ball of the same radius and the l_inf ball of radius
    r / sqrt(pixels) lie inside the l2 ball. Both are proofs, and far smaller than a certificate made for that norm.
    """
    if pixels < 1:
        raise BronetError(f"pixels must be at least 1, got {pixels}")
    return radius / math.sqrt(pixels) * (1 - SAFETY_ULPS * 2.0**-52) if norm == "linf" else radius
