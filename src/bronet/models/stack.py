"""Stacks of one kind of layer: the networks of Table 1's rivals (Cayley, AOL, CPL, SLL, Sandwich), in our frame.

Each has the published sequence of layers, with our input normalisation and normalised head, so that certificates are
comparable (docs/rivals.md).
"""

import math

from jaxtyping import Float
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.graph.model import CertifiableModel, computes_ahead
from bronet.layers.activation import MaxMin
from bronet.layers.head import LastLayerNormalized
from bronet.layers.registry import CONVOLUTIONS
from bronet.layers.shape import Flatten, PixelUnshuffle, ScaledMeanPool
from bronet.layers.shift import Bias, Normalization
from bronet.recipe.architecture import StackArchitecture
from bronet.recipe.schema import DatasetSpec

_PIXEL_MEAN = 0.5


class Stack(CertifiableModel):
    """The network of an architecture for the images and classes of a data set."""

    def __init__(self, architecture: StackArchitecture, spec: DatasetSpec) -> None:
        super().__init__(spec.shape)
        self.spec = spec
        self.architecture = a = architecture
        self.normalization = Normalization((_PIXEL_MEAN,) * spec.channels)
        self.patches = PixelUnshuffle(a.patch)
        factor = a.patch * a.pool * math.prod(a.strides)
        if spec.height != spec.width or spec.height % factor:
            raise BronetError(
                f"images must be square with sides a multiple of {factor} (patch, strides and pool of the stack), "
                f"got {spec.height} x {spec.width}"
            )
        channels, side = spec.channels * a.patch**2, spec.height // a.patch

        self.convolutions = nn.Sequential()
        for width, kernel, stride in zip(a.widths, a.kernels, a.strides, strict=True):
            self.convolutions.append(self._block(channels, width, side, kernel=kernel, stride=stride, hidden=a.hidden))
            channels, side = width, side // stride
        self.pool = ScaledMeanPool(a.pool)
        side //= a.pool

        # A vector is an image of one pixel, on which a 1 x 1 convolution is a dense layer.
        self.to_vector = PixelUnshuffle(side)
        channels *= side**2
        self.dense = nn.Sequential()
        for width in a.dense_widths:
            self.dense.append(self._block(channels, width, 1, kernel=1, stride=1, hidden=a.dense_hidden))
            channels = width
        self.flatten = Flatten()
        self.head = LastLayerNormalized(channels, spec.classes)

    @computes_ahead
    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        x = self.pool(self.convolutions(self.patches(self.normalization(images))))
        x = self.flatten(self.dense(self.to_vector(x)))
        logits: Tensor = self.head(x)
        return logits

    def _block(
        self, c_in: int, c_out: int, side: int, *, kernel: int, stride: int, hidden: int | None
    ) -> nn.Sequential:
        """Return a layer with bias and activation, or alone if it has its own nonlinearity."""
        kind, size = self.architecture.layer, (side, side)
        conv = CONVOLUTIONS[kind](c_in, c_out, kernel, stride=stride, hidden_channels=hidden, input_size=size)
        return nn.Sequential(conv, *((Bias(c_out), MaxMin()) if self.architecture.activation == "maxmin" else ()))
