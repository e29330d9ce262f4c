"""The radius as the literature computes it: a float32 forward and power-iteration estimates. Not a proof.

Kept for comparison only: power iteration approaches a norm from below, and rounding is ignored.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from bronet.layers import frozen
from bronet.models import CertifiableModel
from bronet.radius import margin_radius

# Steps that the published evaluation takes.
POWER_STEPS = 500


@torch.no_grad()
def naive_gap_lipschitz(model: CertifiableModel) -> Float[Tensor, "k k"]:
    """Return the gap matrix from estimates after 500 power-iteration steps; the model's own vectors are left alone."""
    vectors = {name: buffer.clone() for name, buffer in model.named_buffers() if name.endswith("power_vector")}
    model.update_estimates(POWER_STEPS)
    gap = model.gap_lipschitz()
    for name, buffer in model.named_buffers():
        if name in vectors:
            buffer.copy_(vectors[name])
    return gap


@torch.no_grad()
def naive_radius(
    model: CertifiableModel, images: Float[Tensor, "b c h w"], gap_lipschitz: Float[Tensor, "k k"]
) -> Float[Tensor, " b"]:
    """Return the radius of the float32 forward under an estimated gap matrix, in evaluation mode."""
    was_training = model.training
    model.eval()
    with frozen(model):
        logits = model(images.to(next(model.parameters()).dtype))
    model.train(was_training)
    return margin_radius(logits, gap_lipschitz).radius
