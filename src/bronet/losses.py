"""Losses of section 5 and App. C: each maps (logits, labels, ...) to a scalar and never sees the model.

Logit Annealing (LA) is -T (1 - p_t)^beta log p_t with p = softmax((z - xi y) / T). It is compared with cross-entropy
(CE), the baseline of Tables 6 and 13, alone or with certificate regularisation (CR): the text rewards the logit margin,
which is about 5.6 times stronger, and the published code the certified radius in pixel space; each has its own
function. The gradient of both jumps where the prediction becomes correct. The ramp loss of Theorem 1 is for analysis:
its gradient is 0 on misclassified images, so it does not train a network from scratch.

`emma` adjusts logits, and any of the losses can follow it. `drawn_labels` prepares a loss for uncertain labels. Nothing
waits for an accelerator, so the range of labels on one is not checked.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from bronet.errors import BronetError
from bronet.radius import margin_radius

PUBLISHED_GAMMA = 0.5
"""The gamma of App. C and of the published code."""
MIN_SHARE = 0.01
"""The least share of EMMA's budget for a class, so that misclassified images still have a gradient to the gap."""
MAX_LABELS = 10
"""Less probable labels of an image are ignored, because the loss is computed once for every label."""


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
    finite logits (divided by the temperature); the gradient vanishes as p_t -> 1 when beta > 0. The loss is not convex
    in the logits, and flat (by design) where the margin is large.

    `temperature` is T, `offset` is xi, and `beta` the strength of the annealing. With `weights`, one per image, the
    result is a weighted sum instead of the mean (see `drawn_labels`).
    """
    _check_weight("temperature", temperature, positive=True)
    _check_weight("beta", beta)
    scaled = checked_logits(logits, labels) / temperature
    truth = labels[:, None]
    others = scaled.scatter(1, truth, -torch.inf).logsumexp(dim=1)
    # p_t is the sigmoid of this soft margin, so log p_t and log(1 - p_t) are log-sigmoids. No probability is ever
    # formed: value and gradient stay finite when p_t is 0 or 1 in floating point.
    soft_margin = scaled.gather(1, truth).squeeze(1) - offset / temperature - others

    log_p = F.logsigmoid(soft_margin)
    log_not_p = F.logsigmoid(-soft_margin)
    each = -temperature * (beta * log_not_p).exp() * log_p
    return each.mean() if weights is None else (weights * each).sum()


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
    _check_weight("gamma", gamma)
    cross = cross_entropy(logits, labels)
    prediction, _, radius = margin_radius(logits, gap_lipschitz)
    return cross - gamma * radius.where(prediction == labels, 0.0).mean()


def certificate_risk(logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"], *, gamma: float) -> Float[Tensor, ""]:
    """Return the CR risk of App. C, the mean of -gamma max(M_f, 0).

    Guaranteed (Prop. 4): with tau the largest margin and gamma = 1/tau it is the ramp risk minus one.
    """
    _check_weight("gamma", gamma)
    return -gamma * logit_margin(logits, labels).relu().mean()


def ramp(logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"], *, tau: float) -> Float[Tensor, ""]:
    """Return the margin risk: the mean of 1 at margins <= 0, 0 at margins >= tau, and linear between."""
    _check_weight("tau", tau, positive=True)
    return (1 - logit_margin(logits, labels) / tau).clamp(0, 1).mean()


def emma(
    logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"], gap_lipschitz: Float[Tensor, "k k"], *, eps: float | Tensor
) -> Float[Tensor, "b k"]:
    """Return the logits with + e_j * eps * gap[t, j] on every wrong class j, in float32 or better.

    EMMA (Hu et al., 2023; App. B.3) raises a wrong logit by what an attacker of budget eps could gain. It proves
    nothing. Its gradient through `gap_lipschitz` regularises the constants of layers that are not orthogonal.

    Guaranteed: e_j = clip((f_t - f_j) / (eps * gap[t, j]), 0.01, 1), with the gradient stopped through e_j
    only; the true logit is untouched; eps = 0 changes nothing.
    """
    if not isinstance(eps, Tensor):  # reading a tensor on a GPU would wait for it
        _check_weight("eps", eps)
    classes = logits.shape[-1]
    if gap_lipschitz.shape != (classes, classes):
        raise BronetError(f"gap_lipschitz must be {classes} x {classes}, got {tuple(gap_lipschitz.shape)}")
    logits = checked_logits(logits, labels)
    truth = labels[:, None]
    wrong = torch.arange(classes, device=logits.device) != truth
    budget = torch.where(wrong, eps * gap_lipschitz[labels].to(logits.dtype), 0.0)

    margin = (logits.gather(1, truth) - logits).detach()
    # Where the budget is 0 the share is multiplied by 0 and may be any finite number.
    attackable = budget.detach() > 0
    share = torch.where(attackable, margin / torch.where(attackable, budget.detach(), 1.0), 1.0)
    return logits + share.clamp(MIN_SHARE, 1.0) * budget


class DrawnLabels(NamedTuple):
    """Every image once for each of its labels, with weights whose sum is one."""

    logits: Float[Tensor, "n k"]
    labels: Int[Tensor, " n"]
    weights: Float[Tensor, " n"]


def drawn_labels(logits: Float[Tensor, "b k"], probabilities: Float[Tensor, "b k"]) -> DrawnLabels:
    """Return logits, labels and weights for the mean of a loss over drawn labels.

    An image counts once for each label, weighted by the label's probability, so the loss itself need not change.

    Guaranteed: with at most ten classes the weighted sum of a loss over the result is its mean over images and over
    labels drawn from `probabilities`. With more classes only the ten most probable labels count, with their
    probabilities scaled to sum to one.
    """
    if probabilities.shape != logits.shape:
        raise BronetError(
            f"probabilities must have the shape of the logits {tuple(logits.shape)}, got {tuple(probabilities.shape)}"
        )
    images, classes = logits.shape
    most_probable = probabilities.topk(min(classes, MAX_LABELS), dim=1)
    shares = most_probable.values / most_probable.values.sum(dim=1, keepdim=True)
    repeated = logits[:, None].expand(-1, shares.shape[1], -1).reshape(-1, classes)
    return DrawnLabels(repeated, most_probable.indices.flatten(), shares.flatten() / images)


def checked_logits(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the logits in float32 or better, once shapes, dtypes and (on the CPU) labels are checked."""
    if logits.ndim != 2 or logits.shape[0] < 1 or logits.shape[1] < 2:
        raise BronetError(f"logits must have shape (images >= 1, classes >= 2), got {tuple(logits.shape)}")
    if not logits.is_floating_point():
        raise BronetError(f"logits must be floating point, got {logits.dtype}")
    if labels.shape != logits.shape[:1] or labels.dtype != torch.int64:
        raise BronetError(
            f"labels must be int64 of shape {tuple(logits.shape[:1])}, one class index per image, "
            f"got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    if labels.device.type == "cpu" and not torch.compiler.is_compiling():
        least, largest = (int(bound) for bound in labels.aminmax())
        if least < 0 or largest >= logits.shape[1]:
            raise BronetError(f"labels must lie in 0 .. {logits.shape[1] - 1}, got {least} .. {largest}")
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _check_weight(name: str, value: float, *, positive: bool = False) -> None:
    """Raise unless value >= 0, or value > 0 if it must be positive; NaN is neither."""
    if not (value > 0 if positive else value >= 0):
        raise BronetError(f"{name} must be {'positive' if positive else 'at least 0'}, got {value}")
