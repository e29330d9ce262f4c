"""The forward pass of a training step as one module: logits, and the Lipschitz constants that the loss may use.

One module, because data-parallel and sharded training wrap a module and see only what happens inside its forward.
"""

import warnings
from contextlib import nullcontext

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bronet.layers.execution import Beside
from bronet.models import CertifiableModel
from bronet.recipe.schema import Recipe
from bronet.train.objective import needs_gap
from bronet.train.processes import Processes
from bronet.train.sharding import shard


class TrainingForward(nn.Module):
    """Pixels -> (logits, gap): refreshes the norm estimates, then runs the model in the recipe's precision.

    On a GPU the estimates are refreshed `beside` the model's forward pass, where that does not read them.
    """

    def __init__(self, model: CertifiableModel, recipe: Recipe, *, beside: bool = True) -> None:
        super().__init__()
        self.model = model
        self.power_iterations = recipe.train.power_iterations
        self.in_bf16 = recipe.train.precision == "bf16"
        self.gap_has_gradient = needs_gap(recipe.loss)
        self.estimates_beside = beside and not any(layer.forward_uses_estimate for _, layer in model.chain())

    def forward(self, pixels: Float[Tensor, "b c h w"]) -> tuple[Float[Tensor, "b k"], Float[Tensor, "k k"]]:
        estimates = Beside(pixels.device)
        with estimates() if self.estimates_beside else nullcontext():
            self.model.update_estimates(self.power_iterations)
        with torch.autocast(pixels.device.type, dtype=torch.bfloat16, enabled=self.in_bf16, cache_enabled=False):
            logits = self.model(pixels)
        estimates.wait()
        with torch.set_grad_enabled(self.gap_has_gradient and torch.is_grad_enabled()):
            gap = self.model.gap_lipschitz()
        return logits, gap


def forward_for(
    model: CertifiableModel,
    recipe: Recipe,
    processes: Processes,
    *,
    device: torch.device,
    fsdp: bool = False,
) -> nn.Module:
    """Return the forward pass; with several processes, gradients are averaged over them during the backward pass.

    With `fsdp` the model's parameters are sharded over the processes, in place, and moved to the device part by part.
    Buffers are equal everywhere by construction (centring sees the whole batch, power iteration only the weights), so
    none is sent.
    """
    if processes.world == 1:
        return TrainingForward(model, recipe)
    processes.centre_over_all(model)
    # What is gathered on one stream would be freed while another still reads it.
    forward = TrainingForward(model, recipe, beside=not fsdp)
    if fsdp:
        shard(model, forward, device)
        return forward
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # newer versions have two options in place of this one
        return DistributedDataParallel(forward, broadcast_buffers=False, gradient_as_bucket_view=True)
