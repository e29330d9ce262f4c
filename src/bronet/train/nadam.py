"""NAdam (Dozat, 2016) for a GPU: torch's formula and state, one pass over memory per parameter.

What changes with the step count is computed on the host and put where the kernel reads it, so that a recorded step can
be replayed. Its state has the names of torch's NAdam: a checkpoint of one continues with the other.
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Parameter

_BETAS = (0.9, 0.999)
_EPS = 1e-8
_MOMENTUM_DECAY = 4e-3
_DECAY_BASE = 0.96


class FusedNAdam(torch.optim.NAdam):
    """NAdam with coupled weight decay on CUDA parameters of float32. Call `prepare` before every `step`."""

    def __init__(self, parameters: Iterable[Parameter], *, lr: float, weight_decay: float) -> None:
        super().__init__(
            parameters, lr=lr, betas=_BETAS, eps=_EPS, weight_decay=weight_decay, momentum_decay=_MOMENTUM_DECAY
        )
        self.all: list[Parameter] = [p for group in self.param_groups for p in group["params"]]
        self.coefficients = torch.zeros(3, device=self.all[0].device)
        self.count, self.mu_product = torch.zeros(()), torch.ones(())
        for p in self.all:
            self.state[p] = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        self._share_counters()

    def _share_counters(self) -> None:
        for p in self.all:
            self.state[p]["step"], self.state[p]["mu_product"] = self.count, self.mu_product

    def prepare(self, lr: float) -> None:
        """Count a step and put its three coefficients on the device, without waiting for it."""
        state = self.state[self.all[0]]
        if state["step"] is not self.count:  # a checkpoint was loaded
            self.count, self.mu_product = state["step"].clone(), state["mu_product"].clone()
            self._share_counters()
        t = int(self.count) + 1
        mu, following = (_BETAS[0] * (1 - 0.5 * _DECAY_BASE ** (step * _MOMENTUM_DECAY)) for step in (t, t + 1))
        self.count += 1
        self.mu_product *= mu
        product = float(self.mu_product)
        values = (lr * (1 - mu) / (1 - product), lr * following / (1 - product * following), 1 - _BETAS[1] ** t)
        for index, value in enumerate(values):
            self.coefficients[index].fill_(value)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        from bronet.kernels.nadam import update

        decay = float(self.param_groups[0]["weight_decay"])
        for p in self.all:
            if p.grad is None or p.numel() == 0:  # a process may hold nothing of a short parameter
                continue
            m: Tensor = self.state[p]["exp_avg"]
            v: Tensor = self.state[p]["exp_avg_sq"]
            update(p, p.grad, m, v, self.coefficients, betas=_BETAS, eps=_EPS, weight_decay=decay)
