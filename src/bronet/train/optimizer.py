"""The optimisers of the paper: NAdam for BRONet, SGD with momentum for LipConvNet (App. B.5).

Weight decay is coupled (an L2 term in the gradient) in both. All parameters are treated alike.
"""

from collections.abc import Iterable

import torch
from torch.nn import Parameter
from torch.optim import Optimizer

from bronet.recipe.schema import OptimRecipe
from bronet.train.lookahead import Lookahead
from bronet.train.nadam import FusedNAdam
from bronet.train.sharding import parameter_part


def build_optimizer(recipe: OptimRecipe, parameters: Iterable[Parameter]) -> Lookahead:
    """Return the recipe's optimiser inside Lookahead; its learning rate is set anew in every step.

    Of sharded parameters it holds, and steps on, this process's parts.
    """
    inner: Optimizer
    origins = list(parameters)
    parameters = [parameter_part(parameter) for parameter in origins]
    on_gpu = parameters[0].is_cuda
    if recipe.name == "nadam" and on_gpu:
        inner = FusedNAdam(parameters, lr=recipe.lr, weight_decay=recipe.weight_decay)
    elif recipe.name == "nadam":
        inner = torch.optim.NAdam(
            parameters,
            lr=recipe.lr,
            weight_decay=recipe.weight_decay,
            decoupled_weight_decay=False,
            foreach=True,
        )
    else:
        inner = torch.optim.SGD(
            parameters,
            # On a GPU the rate is a tensor, so that a recorded step follows its schedule.
            lr=torch.tensor(recipe.lr, device=parameters[0].device) if on_gpu else recipe.lr,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            foreach=not on_gpu,
            fused=on_gpu,  # the only kind that reads its rate from the device
        )
    return Lookahead(inner, steps=recipe.lookahead_steps, alpha=recipe.lookahead_alpha, origins=origins)
