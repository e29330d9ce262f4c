"""EMMA (Hu et al., 2023; App. B.3): raise every wrong logit by what an attacker of budget eps could gain.

Cross-entropy or Logit Annealing of the adjusted logits follows. The gradient through `gap_lipschitz` regularises the
Lipschitz constants of layers that are not orthogonal. EMMA proves nothing.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bronet.errors import BronetError
from bronet.losses.labels import check_weight, checked_logits

MIN_SHARE = 0.01
"""The smallest share of its budget that a class gets, so that misclassified images still have a gradient to the gap."""


def emma(
    logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"], gap_lipschitz: Float[Tensor, "k k"], *, eps: float | Tensor
) -> Float[Tensor, "b k"]:
    """Return the logits with + e_j * eps * gap[t, j] on every wrong class j, in float32 or better.

    Guaranteed: e_j = clip((f_t - f_j) / (eps * gap[t, j]), 0.01, 1), with the gradient stopped through e_j
    only; the true logit is untouched; eps = 0 changes nothing.
    """
    if not isinstance(eps, Tensor):  # reading a tensor on a GPU would wait for it
        check_weight("eps", eps)
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
