"""The forward pass of a training step as one module: logits, and the Lipschitz constants that the loss may use.

One module, because data-parallel and sharded training wrap a module and see only what happens inside its forward.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bronet.models import CertifiableModel
from bronet.recipe.schema import Recipe
from bronet.train.objective import needs_gap
from bronet.train.processes import Processes


class TrainingForward(nn.Module):
    """Pixels -> (logits, gap): refreshes the norm estimates, then runs the model in the recipe's precision."""

    def __init__(self, model: CertifiableModel, recipe: Recipe) -> None:
        super().__init__()
        self.model = model
        self.power_iterations = recipe.train.power_iterations
        self.in_bf16 = recipe.train.precision == "bf16"
        self.gap_has_gradient = needs_gap(recipe.loss)

    def forward(self, pixels: Float[Tensor, "b c h w"]) -> tuple[Float[Tensor, "b k"], Float[Tensor, "k k"]]:
        self.model.update_estimates(self.power_iterations)
        with torch.autocast(pixels.device.type, dtype=torch.bfloat16, enabled=self.in_bf16):
            logits = self.model(pixels)
        with torch.set_grad_enabled(self.gap_has_gradient and torch.is_grad_enabled()):
            gap = self.model.gap_lipschitz()
        return logits, gap


def forward_for(model: CertifiableModel, recipe: Recipe, processes: Processes) -> nn.Module:
    """Return the forward pass; with several processes, gradients are averaged over them during the backward pass.

    Buffers are equal everywhere by construction (centring sees the whole batch, power iteration only the weights), so
    none is sent.
    """
    forward = TrainingForward(model, recipe)
    if processes.world == 1:
        return forward
    processes.centre_over_all(model)
    return DistributedDataParallel(forward, broadcast_buffers=False, gradient_as_bucket_view=True)
