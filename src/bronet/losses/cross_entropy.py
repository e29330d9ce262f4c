"""Cross-entropy (CE), the baseline of Tables 6 and 13.

On Lipschitz networks it stops increasing margins early; Logit Annealing is the paper's remedy.
"""

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from bronet.losses.arguments import checked_logits


def cross_entropy(logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"]) -> Float[Tensor, ""]:
    """Return the mean of -log softmax(logits)[label], computed in float32 or better."""
    return F.cross_entropy(checked_logits(logits, labels), labels)
