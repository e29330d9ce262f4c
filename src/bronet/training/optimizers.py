"""The optimisers of the paper: NAdam for BRONet, SGD with momentum for LipConvNet (App. B.5); Muon has its own file.

Of a step, `prepare` is the host's part: it puts the learning rate where the device reads it. `step` is the device's,
the same work every time, so that a CUDA graph can record it. Weight decay is coupled (an L2 term in the gradient).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import Parameter

from bronet.errors import BronetError
from bronet.recipe.schema import OptimRecipe
from bronet.training.distributed import Parameters, Stored
from bronet.training.manifold import ManifoldAdam
from bronet.training.muon import Muon

_BETAS = (0.9, 0.999)
_EPS = 1e-8
_MOMENTS = ("exp_avg", "exp_avg_sq")
_MOMENTUM_DECAY = 4e-3
_DECAY_BASE = 0.96


@runtime_checkable
class Optimizer(Stored, Protocol):
    """What a training step needs of an optimiser."""

    def prepare(self, rate: float) -> None:
        """Use this learning rate in the next step; called once before every step, and never recorded."""

    def step(self) -> None:
        """Update every parameter that has a gradient."""


def build_optimizer(recipe: OptimRecipe, parameters: Parameters, *, matrices: Sequence[Parameter] = ()) -> Optimizer:
    """Return the recipe's optimiser; `matrices` are those that Muon orthogonalises, or that stay orthogonal."""
    match recipe.name:
        case "nadam":
            return _nadam(recipe, parameters)
        case "sgd":
            return SGD(parameters, lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay)
        case "muon":
            chosen = set(matrices)
            others = [parameter for parameter in parameters.wholes if parameter not in chosen]
            if not (chosen and others) or len(chosen) + len(others) != len(parameters.wholes):
                raise BronetError(
                    "optim.name muon needs matrices of orthogonal layers among the parameters, and others beside them, "
                    f"got {len(matrices)} of {len(parameters.wholes)}; use nadam"
                )
            nadam = _nadam(recipe, Parameters(others))
            return Muon(matrices, nadam, lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay)
        case "manifold":
            chosen = set(matrices)
            if not chosen or parameters.sharded:
                raise BronetError(
                    "optim.name manifold needs whole orthogonal matrices, those of LipNeXt with model.mixing manifold, "
                    f"got {len(matrices)}{' and a sharded network' if parameters.sharded else ''}; use nadam"
                )
            nadam = _nadam(recipe, Parameters([p for p in parameters.wholes if p not in chosen]))
            return ManifoldAdam(
                matrices, nadam, lookahead_steps=recipe.lookahead_steps, lookahead_alpha=recipe.lookahead_alpha
            )


def _nadam(recipe: OptimRecipe, parameters: Parameters) -> "NAdam":
    kind = FusedNAdam if parameters.parts[0].is_cuda else NAdam
    return kind(parameters, lr=recipe.lr, weight_decay=recipe.weight_decay)


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


class TorchOptimizer(Stored):
    """One of torch's optimisers, on the parts of parameters. Where its rate is a tensor, a recorded step reads that."""

    def __init__(self, parameters: Parameters, inner: torch.optim.Optimizer) -> None:
        self.parameters, self.inner = parameters, inner

    def prepare(self, rate: float) -> None:
        group = self.inner.param_groups[0]
        group["lr"] = group["lr"].fill_(rate) if isinstance(group["lr"], Tensor) else rate

    def step(self) -> None:
        self.inner.step()


class SGD(TorchOptimizer):
    """SGD with momentum."""

    def __init__(self, parameters: Parameters, *, lr: float, momentum: float, weight_decay: float) -> None:
        parts = parameters.parts
        on_gpu = parts[0].is_cuda
        inner = torch.optim.SGD(
            parts,
            lr=torch.tensor(lr, device=parts[0].device) if on_gpu else lr,
            momentum=momentum,
            weight_decay=weight_decay,
            foreach=not on_gpu,
            fused=on_gpu,  # the only kind that reads its rate from the device
        )
        super().__init__(parameters, inner)
        self.momenta = [torch.zeros_like(part) for part in parts]
        if momentum:
            inner.state.update((p, {"momentum_buffer": m}) for p, m in zip(parts, self.momenta, strict=True))

    def tensors(self) -> dict[str, Tensor]:
        return self.parameters.like_wholes("momentum", self.momenta)


class NAdam(TorchOptimizer):
    """NAdam (Dozat, 2016), on a CPU."""

    def __init__(self, parameters: Parameters, *, lr: float, weight_decay: float) -> None:
        parts = parameters.parts
        inner = torch.optim.NAdam(parts, lr, _BETAS, _EPS, weight_decay, _MOMENTUM_DECAY, foreach=True)
        super().__init__(parameters, inner)
        self.state = [
            {"step": torch.zeros(()), "mu_product": torch.ones(())}
            | {moment: torch.zeros_like(part) for moment in _MOMENTS}
            for part in parts
        ]
        self.inner.state.update(zip(parts, self.state, strict=True))

    def tensors(self) -> dict[str, Tensor]:
        """Return both moments of every parameter, and two numbers that count the steps of all."""
        newest = max(self.state, key=lambda state: float(state["step"]))  # one without gradients counts no steps
        found = {"step": newest["step"], "mu_product": newest["mu_product"]}
        for moment in _MOMENTS:
            found |= self.parameters.like_wholes(moment, [state[moment] for state in self.state])
        return found

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        super().load_tensors(tensors)
        for state in self.state:
            state["step"].copy_(tensors["step"])
            state["mu_product"].copy_(tensors["mu_product"])


class FusedNAdam(NAdam):
    """NAdam for a GPU, parameters of float32: torch's formula and state, one pass over memory per parameter.

    What changes with the step count is computed on the host and put where the kernel reads it, so that a recorded step
    can be replayed. A checkpoint of one NAdam continues with the other.
    """

    def __init__(self, parameters: Parameters, *, lr: float, weight_decay: float) -> None:
        super().__init__(parameters, lr=lr, weight_decay=weight_decay)
        self.weight_decay = weight_decay
        self.coefficients = torch.zeros(3, device=parameters.parts[0].device)
        self.count, self.mu_product = self.state[0]["step"], self.state[0]["mu_product"]
        for state in self.state:  # all count the same steps
            state["step"], state["mu_product"] = self.count, self.mu_product

    def prepare(self, rate: float) -> None:
        """Count a step and put its three coefficients on the device, without waiting for it."""
        t = int(self.count) + 1
        mu, following = (_BETAS[0] * (1 - 0.5 * _DECAY_BASE ** (step * _MOMENTUM_DECAY)) for step in (t, t + 1))
        self.count += 1
        self.mu_product *= mu
        product = float(self.mu_product)
        values = (rate * (1 - mu) / (1 - product), rate * following / (1 - product * following), 1 - _BETAS[1] ** t)
        for index, value in enumerate(values):
            self.coefficients[index].fill_(value)

    @torch.no_grad()
    def step(self) -> None:
        from bronet.kernels.nadam import update

        for p, state in zip(self.parameters.parts, self.state, strict=True):
            if p.grad is None or p.numel() == 0:  # a process may hold nothing of a short parameter
                continue
            m, v = state["exp_avg"], state["exp_avg_sq"]
            update(p, p.grad, m, v, self.coefficients, betas=_BETAS, eps=_EPS, weight_decay=self.weight_decay)
