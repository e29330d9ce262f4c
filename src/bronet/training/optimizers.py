"""The optimisers of the paper: NAdam for BRONet, SGD with momentum for LipConvNet (App. B.5); Muon has its own file.

Of a step, `prepare` is the host's part: it puts the learning rate where the device reads it. `step` is the device's,
the same work every time, so that a CUDA graph can record it. Weight decay is coupled (an L2 term in the gradient).
"""

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim.sgd import sgd

from bronet.errors import BronetError
from bronet.recipe.schema import OptimRecipe
from bronet.training.distributed import Stored, numbered, part_of
from bronet.training.manifold import ManifoldAdam
from bronet.training.muon import Muon

_BETAS = (0.9, 0.999)
_EPS = 1e-8
_MOMENTUM_DECAY = 4e-3
_DECAY_BASE = 0.96
_MATRICES = {"muon": "matrices of orthogonal layers", "manifold": "the orthogonal matrices of LipNeXt"}


@runtime_checkable
class Optimizer(Stored, Protocol):
    """What a training step needs of an optimiser."""

    def prepare(self, rate: float) -> None:
        """Use this learning rate in the next step; called once before every step, and never recorded."""

    def step(self) -> None:
        """Update every parameter that has a gradient."""


def build_optimizer(
    recipe: OptimRecipe, parameters: Sequence[Parameter], *, matrices: Sequence[Parameter] = ()
) -> Optimizer:
    """Return the recipe's optimiser; `matrices` are those that Muon orthogonalises, or that stay orthogonal."""
    name, decay = recipe.name, recipe.weight_decay
    if name == "sgd":
        return SGD(parameters, momentum=recipe.momentum, weight_decay=decay)
    if name == "nadam":
        return NAdam(parameters, weight_decay=decay)
    chosen = set(matrices)
    others = [parameter for parameter in parameters if parameter not in chosen]
    if not (chosen and others) or len(chosen) + len(others) != len(parameters):
        raise BronetError(
            f"optim.name {name} needs {_MATRICES[name]} among the parameters, and others beside them, "
            f"got {len(matrices)} of {len(parameters)}; use nadam"
        )
    nadam = NAdam(others, weight_decay=decay)
    if name == "muon":
        return Muon(matrices, nadam, momentum=recipe.momentum, weight_decay=decay)
    return ManifoldAdam(matrices, nadam, lookahead_steps=recipe.lookahead_steps, lookahead_alpha=recipe.lookahead_alpha)


def learning_rate(recipe: OptimRecipe, *, step: int, steps_per_epoch: int, total_steps: int) -> float:
    """Return the learning rate of a step, counted from 0: a pure function, so that resuming needs no schedule state.

    Cosine: it grows linearly over the warm-up and reaches `lr` in its last step, then follows half a cosine that would
    be 0 at `total_steps`. Linear: the same warm-up, then a straight line to the same end. Milestones: `lr` times
    `milestone_factor` to the number of milestones (in epochs) passed.
    """
    if recipe.schedule == "milestones":
        passed = sum(step >= milestone * steps_per_epoch for milestone in recipe.milestones)
        return recipe.lr * recipe.milestone_factor**passed
    warmup = recipe.warmup_epochs * steps_per_epoch
    if step < warmup:
        return recipe.lr * (step + 1) / warmup
    done = (step - warmup) / max(1, total_steps - warmup)
    if recipe.schedule == "linear":
        return recipe.lr * (1 - done)
    return recipe.lr * (1 + math.cos(math.pi * done)) / 2


class SGD:
    """SGD with momentum, torch's; on a GPU of the kind that reads its rate from the device, the fused one."""

    def __init__(self, parameters: Sequence[Parameter], *, momentum: float, weight_decay: float) -> None:
        self.momentum, self.weight_decay, self.on_gpu = momentum, weight_decay, parameters[0].is_cuda
        self.momenta = [torch.zeros_like(parameter) for parameter in parameters]
        self.states = [(p, part_of(p), part_of(m)) for p, m in zip(parameters, self.momenta, strict=True)]
        self.rate: Tensor | float = torch.zeros((), device=parameters[0].device) if self.on_gpu else 0.0

    def prepare(self, rate: float) -> None:
        self.rate = self.rate.fill_(rate) if isinstance(self.rate, Tensor) else rate

    @torch.no_grad()
    def step(self) -> None:
        found = [(part, part_of(p.grad), momentum) for p, part, momentum in self.states if p.grad is not None]
        parts, gradients, momenta = map(list, zip(*found, strict=True))
        sgd(
            parts,
            gradients,
            momenta if self.momentum else [],
            foreach=not self.on_gpu,
            fused=self.on_gpu,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=self.rate,  # type: ignore[arg-type]  # the fused one takes a tensor
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )

    def tensors(self) -> dict[str, Tensor]:
        return numbered("momentum", self.momenta)


class NAdam:
    """NAdam (Dozat, 2016) with torch's formula, bit for bit on a CPU.

    What changes with the step count is computed on the host and, for a GPU, put where the kernel reads it, so that a
    recorded step can be replayed. The kernel takes one pass over memory per parameter, of float32. A checkpoint of one
    device continues on the other.
    """

    def __init__(self, parameters: Sequence[Parameter], *, weight_decay: float) -> None:
        self.weight_decay, self.on_gpu = weight_decay, parameters[0].is_cuda
        self.first, self.second = ([torch.zeros_like(parameter) for parameter in parameters] for _ in range(2))
        each = zip(parameters, self.first, self.second, strict=True)
        self.states = [(p, part_of(p), part_of(m), part_of(v)) for p, m, v in each]
        self.count, self.mu_product = torch.zeros(()), torch.ones(())
        self.coefficients = [0.0] * 3
        self.on_device = torch.zeros(3, device=parameters[0].device)

    def prepare(self, rate: float) -> None:
        """Count a step and compute its coefficients; nothing waits for the device."""
        t = int(self.count) + 1
        mu, following = (_BETAS[0] * (1 - 0.5 * _DECAY_BASE ** (step * _MOMENTUM_DECAY)) for step in (t, t + 1))
        self.count += 1
        self.mu_product *= mu
        product = float(self.mu_product)
        of_gradient, of_momentum = rate * (1 - mu) / (1 - product), rate * following / (1 - product * following)
        self.coefficients = [of_gradient, of_momentum, 1 - _BETAS[1] ** t]
        for index, value in enumerate(self.coefficients if self.on_gpu else ()):
            self.on_device[index].fill_(value)

    @torch.no_grad()
    def step(self) -> None:
        # A process may hold nothing of a short parameter.
        found = [(part, part_of(p.grad), m, v) for p, part, m, v in self.states if p.grad is not None and part.numel()]
        if self.on_gpu:
            from bronet.kernels.nadam import update

            for state in found:
                update(*state, self.on_device, betas=_BETAS, eps=_EPS, weight_decay=self.weight_decay)
        elif found:
            self._step_on_cpu(*map(list, zip(*found, strict=True)))

    def _step_on_cpu(
        self, parameters: list[Tensor], gradients: list[Tensor], first: list[Tensor], second: list[Tensor]
    ) -> None:
        of_gradient, of_momentum, correction = self.coefficients
        if self.weight_decay:
            gradients = list(torch._foreach_add(gradients, parameters, alpha=self.weight_decay))
        torch._foreach_lerp_(first, gradients, 1 - _BETAS[0])
        torch._foreach_mul_(second, _BETAS[1])
        torch._foreach_addcmul_(second, gradients, gradients, 1 - _BETAS[1])
        sizes = torch._foreach_sqrt(second)
        torch._foreach_div_(sizes, math.sqrt(correction))
        torch._foreach_add_(sizes, _EPS)
        torch._foreach_addcdiv_(parameters, gradients, sizes, -of_gradient)
        torch._foreach_addcdiv_(parameters, first, sizes, -of_momentum)

    def tensors(self) -> dict[str, Tensor]:
        """Return both moments of every parameter, and two numbers that count the steps of all."""
        moments = numbered("exp_avg", self.first) | numbered("exp_avg_sq", self.second)
        return {"step": self.count, "mu_product": self.mu_product} | moments
