"""Copies of the weights that are trained: Lookahead's slow ones, a running average, and those of the last check.

Any values give 1-Lipschitz layers, so an average of networks is certified like any other.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from bronet.models import CertifiableModel
from bronet.training.distributed import numbered, part_of

POWER_STEPS = 500
"""As many as the published evaluation takes; a vector near its random start needs hundreds."""


class Lookahead:
    """Lookahead (Zhang et al., 2019), as App. B.5 trains BRONet: slow weights beside those that an optimiser steps on.

    After every `steps` steps the slow weights move the share `alpha` towards the fast ones, which the model holds and
    which restart from there. The optimiser's momentum is kept, as in the published code.
    """

    def __init__(self, parameters: Sequence[Tensor], *, steps: int, alpha: float) -> None:
        self.steps, self.alpha = steps, alpha
        self.wholes = [parameter.detach().clone() for parameter in parameters]
        self.fast, self.slow = list(map(part_of, parameters)), list(map(part_of, self.wholes))
        self.taken = torch.zeros((), dtype=torch.int64)

    @torch.no_grad()
    def after_step(self) -> None:
        """Count a step; after every `steps` of them move the slow weights and restart the fast ones there."""
        self.taken += 1
        if int(self.taken) % self.steps == 0:
            torch._foreach_lerp_(self.slow, self.fast, self.alpha)
            torch._foreach_copy_(self.fast, self.slow)

    def tensors(self) -> dict[str, Tensor]:
        return numbered("slow", self.wholes) | {"taken": self.taken}


class Snapshot:
    """A copy of what this process holds of a model's state, on its own device."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self.wholes = {name: tensor.detach().clone() for name, tensor in state.items()}
        self.current, self.kept = list(map(part_of, state.values())), list(map(part_of, self.wholes.values()))

    @torch.no_grad()
    def take(self) -> None:
        """Copy the state as it is."""
        torch._foreach_copy_(self.kept, self.current)

    @torch.no_grad()
    def restore(self) -> None:
        """Put the kept state back into the model."""
        torch._foreach_copy_(self.current, self.kept)


class WeightAverage(Snapshot):
    """An exponential average (EMA) of the parameters and buffers of a model: not in the paper, an option of the recipe.

    After every step the average moves the share 1 - decay towards the model's weights and running means. Vectors of
    power iteration start at random and long: an average of them is no norm's, so they are found anew for the averaged
    kernels.
    """

    def __init__(self, model: CertifiableModel, *, decay: float) -> None:
        super().__init__({name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()})
        self.model, self.decay = model, decay

    @torch.no_grad()
    def take(self) -> None:
        """Take the model's present weights into the average."""
        torch._foreach_lerp_(self.kept, self.current, 1 - self.decay)

    def restore(self) -> None:
        """Replace the model's weights and running means by the average, and estimate its norms anew."""
        super().restore()
        self.model.update_estimates(POWER_STEPS)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model hold the average inside, and what it held before afterwards."""
        trained = Snapshot(self.model.state_dict())
        self.restore()
        try:
            yield
        finally:
            trained.restore()

    def tensors(self) -> dict[str, Tensor]:
        return self.wholes
