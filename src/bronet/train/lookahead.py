"""Lookahead (Zhang et al., 2019) around a torch optimiser, as App. B.5 trains BRONet.

Every `steps` steps the slow weights move the share `alpha` towards the fast ones, and the fast weights
restart from there. The inner optimiser's momentum is kept, as in the published code. The model always holds
the fast weights.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from bronet.errors import BronetError
from bronet.train.muon import Muon
from bronet.train.nadam import FusedNAdam
from bronet.train.sharding import cut, part_of, spread

STATE_KEYS: dict[type[Optimizer], tuple[str, ...]] = {
    torch.optim.NAdam: ("step", "mu_product", "exp_avg", "exp_avg_sq"),
    torch.optim.SGD: ("momentum_buffer",),
    Muon: ("momentum_buffer",),
}
"""What the inner optimisers keep after a step for each parameter; Muon for a matrix."""
NUMBERS = frozenset({"step", "mu_product"})
"""State that is one number per parameter, not a tensor of its shape."""


class Lookahead:
    """An optimiser with slow weights; `steps` = 0 is the inner optimiser alone, and keeps no slow weights.

    `origins` are the model's parameters where the inner optimiser steps on this process's parts of them.
    """

    def __init__(
        self, optimizer: Optimizer, *, steps: int = 6, alpha: float = 0.5, origins: Sequence[Parameter] | None = None
    ) -> None:
        if steps < 0:
            raise BronetError(f"Lookahead's steps must be at least 0, got {steps}")
        if not 0 <= alpha <= 1:
            raise BronetError(f"Lookahead's alpha must lie in [0, 1], got {alpha}")
        self.optimizer = optimizer
        self.steps = steps
        self.alpha = alpha
        self.steps_taken = 0
        self.parameters: list[Tensor] = [p for group in optimizer.param_groups for p in group["params"]]
        self.origins: list[Tensor] = self.parameters if origins is None else list(origins)
        self.slow: list[Tensor] = [p.detach().clone() for p in self.parameters] if steps else []

    def step(self) -> None:
        """Take one step of the inner optimiser, and after every `steps` of them one of the slow weights."""
        self.inner_step()
        self.after_step()

    def inner_step(self) -> None:
        """Take one step of the inner optimiser: the part that a CUDA graph can record."""
        self.optimizer.step()

    @torch.no_grad()
    def after_step(self) -> None:
        """Count an inner step; after every `steps` of them move the slow weights and restart the fast ones there."""
        self.steps_taken += 1
        if self.steps and self.steps_taken % self.steps == 0:
            torch._foreach_lerp_(self.slow, self.parameters, self.alpha)
            torch._foreach_copy_(self.parameters, self.slow)

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter, origin in zip(self.parameters, self.origins, strict=True):
            parameter.grad = origin.grad = None

    def take_gradients(self) -> list[Tensor]:
        """Give each part of a sharded parameter its part of the gradient; return what has one and is stepped on."""
        for parameter, origin in zip(self.parameters, self.origins, strict=True):
            if parameter is not origin:
                parameter.grad = None if origin.grad is None else part_of(origin.grad)
        return [parameter for parameter in self.parameters if parameter.grad is not None]

    def set_learning_rate(self, rate: float) -> None:
        """Use this learning rate in the next step; call it once before every step."""
        if isinstance(self.optimizer, (FusedNAdam, Muon)):
            self.optimizer.prepare(rate)
            return
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def tensors(self) -> dict[str, Tensor]:
        """Return the whole state as named tensors: the inner state of each parameter, then the slow weights.

        They are sharded where the parameter is. The number of steps taken is not among them: it is the training step,
        which a checkpoint stores.
        """
        state = {
            f"state.{index}.{key}": value.clone() if key in NUMBERS else spread(value, self.origins[index])
            for index, parameter in enumerate(self.parameters)
            for key, value in self.optimizer.state[parameter].items()
            if value is not None  # SGD without momentum
        }  # counters are cloned, because they may be shared
        slow = {f"slow.{index}": spread(tensor, self.origins[index]) for index, tensor in enumerate(self.slow)}
        return state | slow

    def _state_shapes(self) -> dict[str, torch.Size]:
        """Return name and shape of every tensor that `tensors` returns after a step, slow weights not."""
        return {
            f"state.{index}.{key}": torch.Size() if key in NUMBERS else origin.shape
            for index, (parameter, origin) in enumerate(zip(self.parameters, self.origins, strict=True))
            for key in _state_keys(self.optimizer, parameter)
        }

    def load_tensors(self, tensors: dict[str, Tensor], *, steps_taken: int) -> None:
        """Restore what `tensors` returned, given as wholes. Nothing changes if a name or a shape does not fit.

        Numbers per parameter (NAdam's step counter) stay on the CPU, where the optimiser reads them without
        waiting for the device.
        """
        slow = {f"slow.{index}": (tensor, self.origins[index]) for index, tensor in enumerate(self.slow)}
        state: dict[Tensor, dict[str, Tensor]] = {}
        wanted = self._state_shapes() if steps_taken else {}
        for name, tensor in tensors.items():
            if name in slow and tensor.shape == slow[name][1].shape:
                continue
            if name not in wanted:
                raise BronetError(f"optimiser state {name} does not belong to this optimiser")
            if tensor.shape != wanted[name]:
                raise BronetError(
                    f"optimiser state {name} must have shape {tuple(wanted[name])}, got {tuple(tensor.shape)}"
                )
            _, index, key = name.split(".")
            parameter, origin = self.parameters[int(index)], self.origins[int(index)]
            kept = tensor if key in NUMBERS else cut(tensor, origin)
            state.setdefault(parameter, {})[key] = kept.to("cpu" if key in NUMBERS else parameter.device, copy=True)
        if missing := slow.keys() - tensors.keys():
            raise BronetError(f"optimiser state {min(missing)} is missing: was Lookahead off in that run?")
        if missing := wanted.keys() - tensors.keys():
            raise BronetError(
                f"optimiser state {min(missing)} is missing, and {len(missing) - 1} more: the file was changed or "
                "made with another optimiser"
            )
        for name, (target, origin) in slow.items():
            target.copy_(cut(tensors[name], origin))
        self.optimizer.state.clear()
        self.optimizer.state.update(state)
        self.steps_taken = steps_taken


def _state_keys(optimizer: Optimizer, parameter: Tensor) -> tuple[str, ...]:
    """Return what an inner optimiser keeps for a parameter after a step."""
    part = optimizer.part_for(parameter) if isinstance(optimizer, Muon) else optimizer
    if not part.param_groups[0].get("momentum", True):  # SGD without it
        return ()
    return next(keys for kind, keys in STATE_KEYS.items() if isinstance(part, kind))
