"""The logit margin M_f(x) = f_t - max over k != t of f_k of the true class t (section 5).

It is a difference of logits, not a distance in pixel space: that is `bronet.radius`.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bronet.losses.arguments import checked_logits


def logit_margin(logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
    """Return the true logit minus the best other one: positive exactly where the prediction is right."""
    logits = checked_logits(logits, labels)
    truth = labels[:, None]
    others = logits.scatter(1, truth, -torch.inf)
    return logits.gather(1, truth).squeeze(1) - others.amax(dim=1)
