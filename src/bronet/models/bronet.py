"""BRONet (App. B.2, Figure 9), LiResNet (a Lipschitz-regularised backbone), and the backbones of Table 3.

Stem, backbone of constant width, neck, dense layers, normalised head; MaxMin between them. Centring and the bias of
each layer follow the published networks, not the text (docs/deviations.md).
"""

from collections import OrderedDict

from jaxtyping import Float
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.graph.model import CertifiableModel, computes_ahead
from bronet.layers import (
    AnyConvolution,
    Bias,
    Block,
    BROLinear,
    Centring,
    CholeskyLinear,
    Flatten,
    L2NormPool,
    LastLayerNormalized,
    LipschitzLayer,
    LipschitzRegularizedConv2d,
    MaxMin,
    Normalization,
    PixelUnshuffle,
    convolution_named,
    create_convolution,
)
from bronet.ortho.spd import SEMI_ORTHOGONAL_RIDGE
from bronet.recipe.architecture import BRONetArchitecture, DenseKind, parse_rank
from bronet.recipe.dataset import DatasetSpec

_PIXEL_MEAN = 0.5


class BRONet(CertifiableModel):
    """The network of an architecture for the images and classes of a data set."""

    def __init__(self, architecture: BRONetArchitecture, spec: DatasetSpec) -> None:
        super().__init__((spec.channels, spec.height, spec.width))
        self.architecture = a = architecture
        self.normalization = Normalization((_PIXEL_MEAN,) * spec.channels)

        size = (spec.height, spec.width)
        self.stem = self._stem(spec.channels, size)
        size = _strided(size, a.stem_kernel, a.stem_stride, a.stem_padding)

        self.regularized = nn.Sequential(*(self._regularized(size) for _ in range(a.regularized_depth)))
        self.backbone = nn.Sequential()
        for _ in range(a.depth):
            conv = self._backbone_convolution(size)
            self.backbone.append(self._centred(conv))
            if a.keep_padding:
                size = (size[0] + 2 * conv.padding, size[1] + 2 * conv.padding)

        self.neck = self._neck(size)
        self.dense = nn.Sequential(*(self._dense_block() for _ in range(a.dense_depth)))
        self.head = LastLayerNormalized(a.dense_width, spec.classes)

    @computes_ahead
    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        x = self.stem(self.normalization(images))
        x = self.backbone(self.regularized(x))
        logits: Tensor = self.head(self.dense(self.neck(x)))
        return logits

    def _stem(self, channels: int, size: tuple[int, int]) -> Block:
        a = self.architecture
        conv = LipschitzRegularizedConv2d(
            channels, a.width, a.stem_kernel, input_size=size, stride=a.stem_stride, padding=a.stem_padding
        )
        return Block(conv, Bias(a.width), MaxMin())

    def _regularized(self, size: tuple[int, int]) -> Block:
        width, depth = self.architecture.width, self.architecture.regularized_depth
        return self._centred(LipschitzRegularizedConv2d(width, width, input_size=size, residual_depth=depth))

    def _backbone_convolution(self, size: tuple[int, int]) -> AnyConvolution:
        a = self.architecture
        options = convolution_named(a.backbone).options
        return create_convolution(
            a.backbone,
            a.width,
            a.width,
            rank=_rank(a.width, a.rank) if "rank" in options else None,
            residual_depth=a.depth if "residual_depth" in options else None,
            padding_mode=a.padding_mode,
            keep_padding=a.keep_padding,
            input_size=size,
        )

    def _centred(self, conv: LipschitzLayer) -> Block:
        shift = Centring if self.architecture.centring else Bias
        return Block(conv, shift(self.architecture.width), MaxMin())

    def _neck(self, size: tuple[int, int]) -> nn.Sequential:
        """Patches to vectors, flattened, then a semi-orthogonal dense layer."""
        a = self.architecture
        if size[0] % a.neck_patch or size[1] % a.neck_patch:
            raise BronetError(f"feature maps must be multiples of neck_patch = {a.neck_patch} wide, got {size}")
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        if a.neck == "l2pool":
            layers["pool"] = L2NormPool(a.neck_patch)
            kind: DenseKind = "cholesky"
        else:
            kind = a.neck
            layers["patches"] = PixelUnshuffle(a.neck_patch)
            layers["conv"] = _semi_orthogonal(kind, a.width * a.neck_patch**2, a.width)
            layers["conv_bias"] = Bias(a.width)
        features = a.width * (size[0] // a.neck_patch) * (size[1] // a.neck_patch)
        layers["flatten"] = Flatten()
        layers["dense"] = Block(_semi_orthogonal(kind, features, a.dense_width), Bias(a.dense_width), MaxMin())
        return nn.Sequential(layers)

    def _dense_block(self) -> Block:
        a, width = self.architecture, self.architecture.dense_width
        linear: LipschitzLayer
        if a.dense == "cholesky":
            linear = CholeskyLinear(width, width, residual_depth=a.dense_depth)
        else:
            linear = BROLinear(width, width, rank=_rank(width, a.rank), residual_depth=a.dense_depth)
        return Block(linear, Bias(width), MaxMin())


def _semi_orthogonal(kind: DenseKind, in_features: int, out_features: int) -> LipschitzLayer:
    if kind == "cholesky":
        return CholeskyLinear(in_features, out_features)
    return BROLinear(in_features, out_features, ridge=SEMI_ORTHOGONAL_RIDGE)


def _rank(channels: int, ratio: str) -> int:
    return max(1, round(channels * parse_rank(ratio)))


def _strided(size: tuple[int, int], kernel: int, stride: int, padding: int) -> tuple[int, int]:
    h, w = ((s + 2 * padding - kernel) // stride + 1 for s in size)
    return h, w
