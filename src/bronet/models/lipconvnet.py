"""LipConvNet-depth-width (App. B.2, Figure 8) of BRO convolutions, or of any other kind (docs/rivals.md).

Five stages; each has depth/5 - 1 layers that keep the shape, and one stride-2 layer that doubles the width: a pixel
unshuffle, then a semi-orthogonal convolution. The kernel is 1 in the last strided layer.
"""

from jaxtyping import Float
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.graph.model import CertifiableModel, computes_ahead
from bronet.layers.activation import Block, Householder, MaxMin
from bronet.layers.base import LipschitzLayer
from bronet.layers.bro_conv import BROConv2d
from bronet.layers.dense import BROLinear
from bronet.layers.head import Head, LastLayerNormalized, OrthogonalHead, SmoothHead
from bronet.layers.registry import CONVOLUTIONS
from bronet.layers.shape import Flatten, PixelUnshuffle
from bronet.layers.shift import Bias, Normalization
from bronet.ortho.spd import SEMI_ORTHOGONAL_RIDGE
from bronet.recipe.architecture import LipConvNetArchitecture, parse_rank
from bronet.recipe.schema import DatasetSpec

_STAGES = 5
_RGB_MEAN = (0.4914, 0.4822, 0.4465)
_GREY_MEAN = 0.5
_COMMON_STD = 0.2507


class LipConvNet(CertifiableModel):
    """The network of an architecture for the images and classes of a data set."""

    def __init__(self, architecture: LipConvNetArchitecture, spec: DatasetSpec) -> None:
        super().__init__(spec.shape)
        self.spec = spec
        if spec.height % 2**_STAGES or spec.width % 2**_STAGES:
            raise BronetError(
                f"LipConvNet halves its images {_STAGES} times: height and width must be multiples of {2**_STAGES}, "
                f"got {spec.height} x {spec.width}"
            )
        self.architecture = architecture
        mean = _RGB_MEAN if spec.channels == len(_RGB_MEAN) else (_GREY_MEAN,) * spec.channels
        self.normalization = Normalization(mean, std=_COMMON_STD)

        self.stages, channels, width = nn.Sequential(), spec.channels, architecture.width
        for stage in range(_STAGES):
            size = (spec.height >> stage, spec.width >> stage)
            self.stages.append(nn.Sequential(*self._stage(channels, width, size, last=stage == _STAGES - 1)))
            channels = width = 2 * width
        self.flatten = Flatten()

        pixels = (spec.height >> _STAGES) * (spec.width >> _STAGES)
        heads: dict[str, type[Head]] = {"lln": LastLayerNormalized, "bro": OrthogonalHead, "crc": SmoothHead}
        self.head = heads[architecture.head](channels * pixels, spec.classes)
        if isinstance(self.head, OrthogonalHead):
            # Like the layers before it. A reflector does not depend on the scale of V, but its gradient does: with the
            # small normals of a dense layer the first SGD steps would be much longer than V, and could end in NaN.
            nn.init.eye_(self.head.linear.weight)

    @computes_ahead
    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        x = self.stages(self.normalization(images))
        logits: Tensor = self.head(self.flatten(x))
        return logits

    def _stage(self, channels: int, width: int, size: tuple[int, int], *, last: bool) -> list[nn.Sequential]:
        """Return the blocks of a stage from `channels` at this size to 2 `width` channels at half the size."""
        kept = self.architecture.depth // _STAGES - 1
        kernel = self.architecture.kernel
        strided_kernel = 1 if last else kernel
        if self.architecture.strided_last:
            blocks = [self._block(channels if i == 0 else width, width, size, kernel=kernel) for i in range(kept)]
            source = width if kept else channels
            return [*blocks, self._block(source, 2 * width, size, stride=2, kernel=strided_kernel)]
        strided = self._block(channels, 2 * width, size, stride=2, kernel=strided_kernel)
        halved = (size[0] // 2, size[1] // 2)
        return [strided, *(self._block(2 * width, 2 * width, halved, kernel=kernel) for _ in range(kept))]

    def _block(self, c_in: int, c_out: int, size: tuple[int, int], *, kernel: int, stride: int = 1) -> nn.Sequential:
        a, bias = self.architecture, Bias(c_out)
        order = {"maxmin": 0, "householder1": 1, "householder2": 2}[a.activation]
        activation = Householder(c_out, order=order) if order else MaxMin()
        if kernel == 1 and stride > 1 and a.backbone == "bro":
            # The same matrix at every frequency: a dense layer on the channels, without a transform.
            linear = BROLinear(c_in * stride**2, c_out, ridge=SEMI_ORTHOGONAL_RIDGE)
            nn.init.eye_(linear.weight)
            return nn.Sequential(PixelUnshuffle(stride), Block(linear, bias, activation))
        return Block(self._convolution(c_in, c_out, size, kernel=kernel, stride=stride), bias, activation)

    def _convolution(self, c_in: int, c_out: int, size: tuple[int, int], *, kernel: int, stride: int) -> LipschitzLayer:
        a = self.architecture
        if a.backbone != "bro":
            return CONVOLUTIONS[a.backbone](c_in, c_out, kernel, stride=stride, input_size=size)
        rank = max(1, round(c_in * parse_rank(a.rank))) if stride == 1 and c_in == c_out else None
        return BROConv2d(c_in, c_out, kernel, rank=rank, stride=stride, ridge=SEMI_ORTHOGONAL_RIDGE, input_size=size)
