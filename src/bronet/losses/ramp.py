"""The ramp loss of App. C, the margin loss of Theorem 1.

It is for analysis: its gradient is 0 on misclassified images, so it does not train a network from scratch.
"""

from jaxtyping import Float, Int
from torch import Tensor

from bronet.losses.arguments import positive
from bronet.losses.margin import logit_margin


def ramp(logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"], *, tau: float) -> Float[Tensor, ""]:
    """Return the margin risk: the mean of 1 at margins <= 0, 0 at margins >= tau, and linear between."""
    positive("tau", tau)
    return (1 - logit_margin(logits, labels) / tau).clamp(0, 1).mean()
