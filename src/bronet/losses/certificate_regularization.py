"""Cross-entropy with certificate regularisation (CE + CR), section 5 and App. C.

The text rewards the logit margin, the published code the certified radius in pixel space; the first is about
5.6 times stronger. Both are here under their own names. The gradient of either jumps where the prediction
becomes correct, which is the paper's case against them.
"""

from jaxtyping import Float, Int
from torch import Tensor

from bronet.losses.arguments import not_negative
from bronet.losses.cross_entropy import cross_entropy
from bronet.losses.margin import logit_margin
from bronet.radius import margin_radius

PUBLISHED_GAMMA = 0.5
"""gamma of App. C and of the published code."""


def certificate_regularization(
    logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"], *, gamma: float = PUBLISHED_GAMMA
) -> Float[Tensor, ""]:
    """Return CE - gamma * mean(relu(logit margin)), as the text of the paper has it."""
    return cross_entropy(logits, labels) + certificate_risk(logits, labels, gamma=gamma)


def certificate_regularization_radius(
    logits: Float[Tensor, "b k"],
    labels: Int[Tensor, " b"],
    gap_lipschitz: Float[Tensor, "k k"],
    *,
    gamma: float = PUBLISHED_GAMMA,
) -> Float[Tensor, ""]:
    """Return CE - gamma * mean(certified radius, 0 where misclassified), as the published code has it.

    The gradient flows through `gap_lipschitz`; detach it to reward margins alone.
    """
    not_negative("gamma", gamma)
    cross = cross_entropy(logits, labels)
    prediction, _, radius = margin_radius(logits, gap_lipschitz)
    return cross - gamma * radius.where(prediction == labels, 0.0).mean()


def certificate_risk(logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"], *, gamma: float) -> Float[Tensor, ""]:
    """Return the CR risk of App. C, the mean of -gamma max(M_f, 0).

    Guaranteed (Prop. 4): with tau the largest margin and gamma = 1/tau it is the ramp risk minus one.
    """
    not_negative("gamma", gamma)
    return -gamma * logit_margin(logits, labels).relu().mean()
