"""The running average of the weights (EMA), for evaluation: not in the paper, an option of the recipe.

After every step the average moves the share 1 - decay towards the model's weights and running means. Any values give
1-Lipschitz layers, so the average of two networks is certified like any other. Vectors of power iteration start at
random and long: an average of them is no norm's, so they are found anew for the averaged kernels.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from bronet.errors import BronetError
from bronet.models import CertifiableModel
from bronet.train.sharding import cut, part_of, spread

POWER_STEPS = 500
"""As many as the published evaluation takes; a vector near its random start needs hundreds."""


class WeightAverage:
    """An exponential average of the parameters and buffers of a model."""

    def __init__(self, model: CertifiableModel, *, decay: float) -> None:
        self.model, self.decay = model, decay
        self.averaged = {name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
        self.current = [part_of(tensor) for tensor in self.averaged.values()]
        self.average = [tensor.clone() for tensor in self.current]

    @torch.no_grad()
    def update(self) -> None:
        """Take the model's present weights into the average."""
        torch._foreach_lerp_(self.average, self.current, 1 - self.decay)

    def tensors(self) -> dict[str, Tensor]:
        """Return the average by the names of the model's tensors, sharded where those are."""
        named = zip(self.averaged.items(), self.average, strict=True)
        return {name: spread(average, tensor) for (name, tensor), average in named}

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """Replace the model's weights and running means by the average, and estimate its norms anew."""
        torch._foreach_copy_(self.current, self.average)
        self.model.update_estimates(POWER_STEPS)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model hold the average inside, and what it held before afterwards."""
        trained = [tensor.clone() for tensor in self.current]
        self.copy_to_model()
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self.current, trained)

    @torch.no_grad()
    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `tensors` returned, given as wholes; nothing changes if a name or a shape does not fit."""
        for name, tensor in self.averaged.items():
            if name not in tensors or tensors[name].shape != tensor.shape:
                raise BronetError(f"average of {name} is missing or of another shape: was train.ema_decay 0 then?")
        for (name, tensor), average in zip(self.averaged.items(), self.average, strict=True):
            average.copy_(cut(tensors[name], tensor))
