"""BRONet (App. B.2, Figure 9), LiResNet (a Lipschitz-regularised backbone), and the backbones of Table 3.

Stem, backbone of constant width, neck, dense layers, normalised head; MaxMin between them. Centring and the bias of
each layer follow the published networks, not the text; so does the neck with `published_neck` (docs/deviations.md).
"""

from collections import OrderedDict

from jaxtyping import Float
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.graph.model import CertifiableModel, computes_ahead
from bronet.layers.activation import Block, MaxMin
from bronet.layers.base import LipschitzLayer
from bronet.layers.convolution import AnyConvolution
from bronet.layers.dense import BROLinear, CholeskyLinear
from bronet.layers.head import LastLayerNormalized
from bronet.layers.registry import CONVOLUTIONS
from bronet.layers.regularized_conv import LipschitzRegularizedConv2d
from bronet.layers.rivals.potential import PotentialConv2d
from bronet.layers.shape import Flatten, L2NormPool, PixelUnshuffle
from bronet.layers.shift import Bias, Centring, Normalization
from bronet.ortho.spd import SEMI_ORTHOGONAL_RIDGE
from bronet.recipe.architecture import BRONetArchitecture, DenseKind, parse_rank
from bronet.recipe.schema import DatasetSpec

_PIXEL_MEAN = 0.5


class BRONet(CertifiableModel):
    """The network of an architecture for the images and classes of a data set."""

    def __init__(self, architecture: BRONetArchitecture, spec: DatasetSpec) -> None:
        super().__init__(spec.shape)
        self.spec = spec
        self.architecture = a = architecture
        self.normalization = Normalization((_PIXEL_MEAN,) * spec.channels)

        size, stride, padding = (spec.height, spec.width), a.stem_stride, a.stem_padding
        stem = LipschitzRegularizedConv2d(
            spec.channels, a.width, a.stem_kernel, input_size=size, stride=stride, padding=padding
        )
        self.stem = Block(stem, Bias(a.width), MaxMin())
        h, w = ((side + 2 * padding - a.stem_kernel) // stride + 1 for side in size)
        size = (h, w)

        self.regularized, self.backbone = nn.Sequential(), nn.Sequential()
        for _ in range(a.regularized_depth):
            conv = LipschitzRegularizedConv2d(a.width, a.width, input_size=size, residual_depth=a.regularized_depth)
            self.regularized.append(self._centred(conv))
        for _ in range(a.depth):
            layer = self._backbone_convolution(size)
            has_activation = isinstance(layer, PotentialConv2d)
            self.backbone.append(layer if has_activation else self._centred(layer))
            if a.keep_padding:
                size = (size[0] + 2 * layer.padding, size[1] + 2 * layer.padding)

        self.neck = self._neck(size)
        self.dense = nn.Sequential(*(self._dense_block() for _ in range(a.dense_depth)))
        self.head = LastLayerNormalized(a.dense_width, spec.classes)

    @computes_ahead
    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        x = self.stem(self.normalization(images))
        x = self.backbone(self.regularized(x))
        logits: Tensor = self.head(self.dense(self.neck(x)))
        return logits

    def _backbone_convolution(self, size: tuple[int, int]) -> AnyConvolution:
        a, kind = self.architecture, CONVOLUTIONS[self.architecture.backbone]
        return kind(
            a.width,
            a.width,
            rank=_rank(a.width, a.rank) if "rank" in kind.options else None,
            residual_depth=a.depth if "residual_depth" in kind.options else None,
            padding_mode=a.padding_mode,
            keep_padding=a.keep_padding,
            input_size=size,
        )

    def _centred(self, conv: LipschitzLayer) -> Block:
        shift = Centring if self.architecture.centring else Bias
        branch_only = isinstance(conv, LipschitzRegularizedConv2d)
        return Block(conv, shift(self.architecture.width), MaxMin(), branch_only=branch_only)

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
            layers["conv"] = self._semi_orthogonal(kind, a.width * a.neck_patch**2, a.width)
            if not a.published_neck:
                layers["conv_bias"] = Bias(a.width)
        features = a.width * (size[0] // a.neck_patch) * (size[1] // a.neck_patch)
        layers["flatten"] = Flatten(by_channel=a.published_neck)
        layers["dense"] = Block(self._semi_orthogonal(kind, features, a.dense_width), Bias(a.dense_width), MaxMin())
        return nn.Sequential(layers)

    def _semi_orthogonal(self, kind: DenseKind, in_features: int, out_features: int) -> LipschitzLayer:
        layer: BROLinear | CholeskyLinear
        if kind == "cholesky":
            layer = CholeskyLinear(in_features, out_features)
        else:
            layer = BROLinear(in_features, out_features, ridge=SEMI_ORTHOGONAL_RIDGE)
        if self.architecture.published_neck:  # the same map, but a step of given size turns larger weights less
            nn.init.normal_(layer.weight, std=in_features**-0.5)
        return layer

    def _dense_block(self) -> Block:
        a, width = self.architecture, self.architecture.dense_width
        linear: LipschitzLayer
        if a.dense == "cholesky":
            linear = CholeskyLinear(width, width, residual_depth=a.dense_depth)
        else:
            linear = BROLinear(width, width, rank=_rank(width, a.rank), residual_depth=a.dense_depth)
        return Block(linear, Bias(width), MaxMin())


def _rank(channels: int, ratio: str) -> int:
    return max(1, round(channels * parse_rank(ratio)))
