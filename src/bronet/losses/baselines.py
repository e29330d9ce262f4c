"""The losses with which Logit Annealing is compared: cross-entropy, certificate regularisation, and the ramp loss.

Cross-entropy (CE) is the baseline of Tables 6 and 13. With certificate regularisation (CE + CR, section 5 and App. C)
the text rewards the logit margin, which is about 5.6 times stronger, and the published code the certified radius in
pixel space; each has its own function. The gradient of both jumps where the prediction becomes correct. The ramp loss
of Theorem 1 is for analysis: its gradient is 0 on misclassified images, so it does not train a network from scratch.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from bronet.losses.labels import check_weight, checked_logits
from bronet.radius import margin_radius

PUBLISHED_GAMMA = 0.5
"""The gamma of App. C and of the published code."""


def cross_entropy(logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"]) -> Float[Tensor, ""]:
    """Return the mean of -log softmax(logits)[label], computed in float32 or better."""
    return F.cross_entropy(checked_logits(logits, labels), labels)


def logit_margin(logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
    """Return the true logit minus the largest other one, which is positive exactly where the prediction is correct."""
    logits = checked_logits(logits, labels)
    truth = labels[:, None]
    others = logits.scatter(1, truth, -torch.inf)
    return logits.gather(1, truth).squeeze(1) - others.amax(dim=1)


def certificate_regularization(
    logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"], *, gamma: float = PUBLISHED_GAMMA
) -> Float[Tensor, ""]:
    """Return CE - gamma * mean(relu(logit margin)), as in the text of the paper."""
    return cross_entropy(logits, labels) + certificate_risk(logits, labels, gamma=gamma)


def certificate_regularization_radius(
    logits: Float[Tensor, "b k"],
    labels: Int[Tensor, " b"],
    gap_lipschitz: Float[Tensor, "k k"],
    *,
    gamma: float = PUBLISHED_GAMMA,
) -> Float[Tensor, ""]:
    """Return CE - gamma * mean(certified radius, 0 where misclassified), as in the published code.

    The gradient flows through `gap_lipschitz`; detach it to reward margins alone.
    """
    check_weight("gamma", gamma)
    cross = cross_entropy(logits, labels)
    prediction, _, radius = margin_radius(logits, gap_lipschitz)
    return cross - gamma * radius.where(prediction == labels, 0.0).mean()


def certificate_risk(logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"], *, gamma: float) -> Float[Tensor, ""]:
    """Return the CR risk of App. C, the mean of -gamma max(M_f, 0).

    Guaranteed (Prop. 4): with tau the largest margin and gamma = 1/tau it is the ramp risk minus one.
    """
    check_weight("gamma", gamma)
    return -gamma * logit_margin(logits, labels).relu().mean()


def ramp(logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"], *, tau: float) -> Float[Tensor, ""]:
    """Return the margin risk: the mean of 1 at margins <= 0, 0 at margins >= tau, and linear between."""
    check_weight("tau", tau, positive=True)
    return (1 - logit_margin(logits, labels) / tau).clamp(0, 1).mean()
