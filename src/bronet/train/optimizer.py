"""The optimisers of the paper, NAdam for BRONet and SGD with momentum for LipConvNet (App. B.5), and Muon.

Weight decay is coupled (an L2 term in the gradient) in all. NAdam and SGD treat all parameters alike.
"""

from collections.abc import Iterable, Sequence

import torch
from torch.nn import Parameter
from torch.optim import NAdam, Optimizer

from bronet.errors import BronetError
from bronet.models import CertifiableModel
from bronet.recipe.schema import OptimRecipe
from bronet.train.lookahead import Lookahead
from bronet.train.muon import Muon, split_parameters
from bronet.train.nadam import FusedNAdam
from bronet.train.sharding import is_sharded, parameter_part


def optimizer_for(recipe: OptimRecipe, model: CertifiableModel) -> Lookahead:
    """Return the recipe's optimiser of a model's parameters, inside Lookahead."""
    matrices = split_parameters(model).matrices if recipe.name == "muon" else ()
    return build_optimizer(recipe, model.parameters(), matrices=matrices)


def build_optimizer(
    recipe: OptimRecipe, parameters: Iterable[Parameter], *, matrices: Sequence[Parameter] = ()
) -> Lookahead:
    """Return the recipe's optimiser inside Lookahead; its learning rate is set anew in every step.

    Of sharded parameters it holds, and steps on, this process's parts. `matrices` are those of the parameters that Muon
    orthogonalises; other optimisers do not ask for them.
    """
    inner: Optimizer
    origins = list(parameters)
    require_wholes(recipe, sharded=any(is_sharded(origin) for origin in origins))
    parameters = [parameter_part(parameter) for parameter in origins]
    on_gpu = parameters[0].is_cuda
    if recipe.name == "nadam":
        inner = _nadam(recipe, parameters)
    elif recipe.name == "muon":
        inner = _muon(recipe, parameters, matrices)
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


def require_wholes(recipe: OptimRecipe, *, sharded: bool) -> None:
    """Refuse to shard parameters that the optimiser needs as wholes."""
    if sharded and recipe.name == "muon":
        raise BronetError(
            "optim.name must be nadam or sgd where parameters are sharded (fsdp), got 'muon': "
            "a part of a matrix cannot be orthogonalised"
        )


def _nadam(recipe: OptimRecipe, parameters: Sequence[Parameter]) -> NAdam:
    if parameters[0].is_cuda:
        return FusedNAdam(parameters, lr=recipe.lr, weight_decay=recipe.weight_decay)
    return NAdam(parameters, lr=recipe.lr, weight_decay=recipe.weight_decay, decoupled_weight_decay=False, foreach=True)


def _muon(recipe: OptimRecipe, parameters: Sequence[Parameter], matrices: Sequence[Parameter]) -> Muon:
    chosen = set(matrices)
    others = [parameter for parameter in parameters if parameter not in chosen]
    if not (chosen and others) or len(chosen) + len(others) != len(parameters):
        raise BronetError(
            "optim.name muon needs matrices of orthogonal layers among the parameters, and others beside them, "
            f"got {len(chosen)} of {len(parameters)}; use nadam"
        )
    return Muon(
        parameters,
        _nadam(recipe, others),
        matrices=matrices,
        lr=recipe.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
    )
