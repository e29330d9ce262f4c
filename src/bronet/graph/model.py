"""Networks for training and certificates: an ordinary forward that ends with a head, and a row of layers as one."""

import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TypeVar

from jaxtyping import Float
from torch import Tensor, fx, nn

from bronet.errors import BronetError
from bronet.graph.estimate import estimate, units_of
from bronet.layers.activation import Block
from bronet.layers.base import LipschitzLayer
from bronet.layers.execution import prepared
from bronet.layers.head import Head

M = TypeVar("M", bound=nn.Module)


def computes_ahead(forward: Callable[[M, Tensor], Tensor]) -> Callable[[M, Tensor], Tensor]:
    """Wrap the forward of a network: images are checked, and what layers derive from parameters is computed ahead.

    A symbol of torch.fx goes through the forward alone.
    """

    @functools.wraps(forward)
    def wrapped(self: M, images: Tensor) -> Tensor:
        if isinstance(images, fx.Proxy):
            return forward(self, images)
        if not images.is_floating_point():
            raise BronetError(f"images must be floating point, got {images.dtype}; divide uint8 by 255")
        with prepared(self):
            return forward(self, images)

    return wrapped


class CertifiableModel(nn.Module):
    """A network with a constant for its losses: images (b, c, h, w) in [0, 1] to logits (b, k), the head last.

    Subclasses define an ordinary forward. Proofs need no such class: `bronet.prove(model, shape)` takes any module.
    """

    head: Head

    def __init__(self, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.image_shape = image_shape

    @property
    def recordable(self) -> bool:
        """Whether a step with the network can be recorded as a CUDA graph."""
        return all(part.recordable for part in self.modules() if isinstance(part, LipschitzLayer))

    def lipschitz_estimate(self) -> Float[Tensor, ""]:
        """Return the constant before the head as training sees it; differentiable, no bound."""
        return estimate(self, self.head)

    def gap_lipschitz(self) -> Float[Tensor, "k k"]:
        """Return the Lipschitz constants of f_t - f_j as training sees them; differentiable, no bound."""
        return self.lipschitz_estimate() * self.head.gaps()

    def update_estimates(self, steps: int) -> None:
        """Take power-iteration steps in every layer that is only Lipschitz-regularised."""
        for unit in dict.fromkeys(units_of(self)):
            unit.update_estimate(steps)


class Chain(CertifiableModel):
    """Layers that are applied one after the other, by name, and a head; the names become parameter names.

    Guaranteed: whatever the layers prove, as for every other network. The first layer sees pixels in [0, 1]; radii are
    in that space.
    """

    def __init__(
        self, image_shape: tuple[int, int, int], layers: Mapping[str, LipschitzLayer | Block], head: Head
    ) -> None:
        super().__init__(image_shape)
        for name, layer in layers.items():
            if not isinstance(layer, (LipschitzLayer, Block)):
                raise BronetError(f"layer {name} of a Chain must be a Lipschitz layer, got {type(layer).__name__}")
        self.layers = nn.Sequential(OrderedDict(layers))
        self.head = head

    @computes_ahead
    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        logits: Tensor = self.head(self.layers(images))
        return logits
