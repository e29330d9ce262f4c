"""LipNeXt (arXiv 2601.18513): orthogonal mixing of channels, shifts of pixels, l2 pooling; and a variant of ours.

No code is published. The block is the paper's; stem, patch size, beta = 1/2 and the share of moved channels are our
choice (docs/lipnext.md). The variant has block reflectors where LipNeXt has matrices on the orthogonal manifold, so any
optimiser trains it.
"""

from jaxtyping import Float
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.graph.model import CertifiableModel, computes_ahead
from bronet.layers import Bias, BROLinear, Flatten, L2NormPool, LastLayerNormalized, Normalization, PixelUnshuffle
from bronet.layers.lipnext import HalfAbs, OrthogonalMix, Position, Shift
from bronet.ortho.spd import SEMI_ORTHOGONAL_RIDGE
from bronet.recipe.architecture import LipNeXtArchitecture, parse_fraction, parse_rank
from bronet.recipe.schema import DatasetSpec

_PIXEL_MEAN = 0.5


class LipNeXt(CertifiableModel):
    """The network of an architecture for the images and classes of a data set."""

    def __init__(self, architecture: LipNeXtArchitecture, spec: DatasetSpec) -> None:
        super().__init__((spec.channels, spec.height, spec.width))
        self.spec, self.architecture = spec, architecture
        a = architecture
        if spec.height != spec.width or spec.height % a.patch or spec.channels * a.patch**2 >= a.width:
            raise BronetError(
                f"LipNeXt needs square images of patches of {a.patch} pixels with fewer numbers than model.width = "
                f"{a.width}, got {spec.channels} x {spec.height} x {spec.width}"
            )
        side = spec.height // a.patch
        self.normalization = Normalization((_PIXEL_MEAN,) * spec.channels)
        self.patches = PixelUnshuffle(a.patch)
        self.embedding = BROLinear(spec.channels * a.patch**2, a.width, ridge=SEMI_ORTHOGONAL_RIDGE)
        self.blocks = nn.Sequential(*(self._block(side) for _ in range(a.depth)))
        self.pool = L2NormPool(side)
        self.flatten = Flatten()
        self.head = LastLayerNormalized(a.width, spec.classes)

    @computes_ahead
    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        x = self.blocks(self.embedding(self.patches(self.normalization(images))))
        logits: Tensor = self.head(self.flatten(self.pool(x)))
        return logits

    def _block(self, side: int) -> nn.Sequential:
        a = self.architecture
        moved = max(1, round(a.width * parse_fraction(a.moved, name="model.moved")))
        if a.mixing == "manifold":
            mixing = nn.Sequential(OrthogonalMix(a.width, moved), OrthogonalMix(a.width))
        else:
            mixing = nn.Sequential(self._reflector(), Shift(a.width, moved), self._reflector())
        return nn.Sequential(Position((side, side)), mixing, Bias(a.width), HalfAbs())

    def _reflector(self) -> BROLinear:
        width = self.architecture.width
        rank = max(1, round(width * parse_rank(self.architecture.rank)))
        return BROLinear(width, width, rank=rank)
