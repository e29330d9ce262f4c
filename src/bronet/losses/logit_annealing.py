"""Logit Annealing (LA), section 5: -T (1 - p_t)^beta log p_t with p = softmax((z - xi y) / T).

p_t is the sigmoid of the soft margin m = (z_t - xi)/T - logsumexp over k != t of z_k/T, so both log p_t and
log(1 - p_t) are log-sigmoids. No probability is ever formed: value and gradient stay finite when p_t is 0 or
1 in floating point. The loss is not convex in the logits, and flat (by design) where the margin is large.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from bronet.losses.labels import check_weight, checked_logits


def logit_annealing(
    logits: Float[Tensor, "b k"],
    labels: Int[Tensor, " b"],
    *,
    temperature: float = 0.75,
    offset: float = 2.0,
    beta: float = 5.0,
    weights: Float[Tensor, " b"] | None = None,
) -> Float[Tensor, ""]:
    """Return the mean LA loss, computed in float32 or better.

    Guaranteed: equals cross-entropy at beta = 0, offset = 0, temperature = 1; finite value and gradient for
    finite logits (divided by the temperature); the gradient vanishes as p_t -> 1 when beta > 0.

    `temperature` is T, `offset` is xi, and `beta` the strength of the annealing. With `weights`, one per image, the
    result is a weighted sum instead of the mean (see `drawn_labels`).
    """
    check_weight("temperature", temperature, positive=True)
    check_weight("beta", beta)
    scaled = checked_logits(logits, labels) / temperature
    truth = labels[:, None]
    others = scaled.scatter(1, truth, -torch.inf).logsumexp(dim=1)
    soft_margin = scaled.gather(1, truth).squeeze(1) - offset / temperature - others

    log_p = F.logsigmoid(soft_margin)
    log_not_p = F.logsigmoid(-soft_margin)
    each = -temperature * (beta * log_not_p).exp() * log_p
    return each.mean() if weights is None else (weights * each).sum()
