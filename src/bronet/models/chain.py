"""A network of one's own: any Lipschitz layers in a row and a head."""

from collections import OrderedDict
from collections.abc import Mapping

from torch import nn

from bronet.layers import Block, Head, LipschitzLayer
from bronet.models.model import CertifiableModel


class Chain(CertifiableModel):
    """Layers that are applied one after the other, by name, and a head; the names become parameter names.

    Guaranteed: whatever the layers prove, as for every other network. The first layer sees pixels in [0, 1]; radii are
    in that space.
    """

    def __init__(
        self, image_shape: tuple[int, int, int], layers: Mapping[str, LipschitzLayer | Block], head: Head
    ) -> None:
        super().__init__(image_shape)
        self.layers = nn.Sequential(OrderedDict(layers))
        self.head = head

    def sections(self) -> list[nn.Module]:
        return [self.layers]
