"""What every network is to the rest of the house: a chain of layers and a head."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.layers import Block, Head, LipschitzLayer
from bronet.layers.execution import prepared
from bronet.layers.faithful import require_faithful


class CertifiableModel(nn.Module):
    """A chain of Lipschitz layers and a head: images (b, c, h, w) in [0, 1] to logits (b, k).

    Subclasses assign their sections and list them, in order, in `sections`.
    """

    head: Head

    def __init__(self, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.image_shape = image_shape

    def sections(self) -> list[nn.Module]:
        """Return the parts before the head, in the order of the forward pass."""
        raise BronetError(f"{type(self).__name__} must list its sections")

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        if not images.is_floating_point():
            raise BronetError(f"images must be floating point, got {images.dtype}; divide uint8 by 255")
        with prepared(self):
            x = images
            for section in self.sections():
                x = section(x)
            logits: Tensor = self.head(x)
        return logits

    def chain(self) -> Iterator[tuple[str, LipschitzLayer]]:
        """Yield every layer before the head with its name, in the order of the forward pass."""
        names = {id(module): name for name, module in self.named_modules()}
        for section in self.sections():
            for layer in _links(section):
                yield names[id(layer)], layer

    def require_faithful(self) -> None:
        """Raise where the forward pass may be another than that of the chain: what `prove` reads would not be it."""
        if type(self).forward is not CertifiableModel.forward:
            raise BronetError(
                f"forward of {type(self).__name__} must be that of CertifiableModel, sections and a head, got its own; "
                "a certificate could not see what it does"
            )
        require_faithful(self)

    def units(self) -> Iterator[Block | LipschitzLayer]:
        """Yield the blocks, and the layers outside of blocks, before the head, in the order of the forward pass."""
        for section in self.sections():
            yield from _units(section)

    @property
    def recordable(self) -> bool:
        """Whether a step with the network can be recorded as a CUDA graph."""
        return all(layer.recordable for _, layer in self.chain())

    def lipschitz_estimate(self) -> Float[Tensor, ""]:
        """Return the product of the layers' constants as training sees them; differentiable, no bound."""
        parameter = next(self.head.parameters())
        estimate = torch.ones((), device=parameter.device, dtype=parameter.dtype)
        for unit in self.units():
            estimate = estimate * unit.lipschitz_estimate()
        return estimate

    def gap_lipschitz(self) -> Float[Tensor, "k k"]:
        """Return the Lipschitz constants of f_t - f_j as training sees them; differentiable, no bound."""
        return self.lipschitz_estimate() * self.head.gaps()

    def update_estimates(self, steps: int) -> None:
        """Take power-iteration steps in every layer that is only Lipschitz-regularised."""
        for unit in self.units():
            unit.update_estimate(steps)


def _units(section: nn.Module) -> Iterator[Block | LipschitzLayer]:
    if isinstance(section, (Block, LipschitzLayer)):
        yield section
        return
    for part in section.children():
        yield from _units(part)


# Exactly these: a subclass could do anything in its forward.
_SEQUENCES = (nn.Sequential, Block)


def _links(section: nn.Module) -> Iterator[LipschitzLayer]:
    """Yield the layers of a section in the order in which its forward applies them, one used twice twice.

    Anything else than a layer, a plain Sequential or a Block is refused: a certificate would leave it out.
    """
    if isinstance(section, LipschitzLayer):
        yield section
    elif type(section) in _SEQUENCES:
        assert isinstance(section, nn.Sequential)
        for part in section:
            yield from _links(part)
    else:
        raise BronetError(
            f"a section must be a Lipschitz layer or a Sequential of them, got {type(section).__name__}; "
            "a certificate could not see what it does"
        )
