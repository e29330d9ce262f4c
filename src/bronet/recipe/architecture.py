"""Architectures as frozen descriptions without tensors (App. B.2 and B.3); `bronet.models` builds the networks."""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from bronet.errors import BronetError
from bronet.records import require_range
from bronet.wording import is_short_word

DenseKind = Literal["bro", "cholesky"]
NeckKind = Literal["bro", "cholesky", "l2pool"]
HeadKind = Literal["lln", "bro"]
PaddingMode = Literal["zeros", "circular"]

MAX_LAYERS = 1_000
MAX_CHANNELS = 65_536
MAX_PIXELS = 4_096
"""For the side of an image, a kernel, a stride or a padding."""

# No exponent: "1e-999999999" would be an exact fraction of a billion digits.
RANK_TEXT = re.compile(r"\d{1,9}(\.\d{1,9}|/\d{1,9})?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class BRONetArchitecture:
    """BRONet and LiResNet (App. B.2): stem, backbone of constant width, neck, dense layers, head.

    `backbone` names the convolution (docs/rivals.md). `rank` is n/m of a BRO backbone and of BRO dense layers, as a
    fraction in text ("1/4"). `padding_mode` is that of the backbone's convolutions, by default zeros around the image
    where their kind allows it. With `keep_padding` a BRO backbone does not remove the padding. `regularized_depth`
    counts the Lipschitz-regularised convolutions before the backbone (six on ImageNet).
    """

    family: Literal["bronet"] = "bronet"
    width: int = 512
    depth: int = 12
    dense_depth: int = 8
    dense_width: int = 2048
    rank: str = "1/4"
    backbone: str = "bro"
    dense: DenseKind = "bro"
    neck: NeckKind = "cholesky"
    neck_patch: int = 4
    stem_kernel: int = 5
    stem_stride: int = 2
    stem_padding: int = 2
    regularized_depth: int = 0
    padding_mode: PaddingMode | None = None
    keep_padding: bool = False
    centring: bool = True

    def __post_init__(self) -> None:
        for name in ("width", "dense_width"):
            require_range(f"model.{name}", getattr(self, name), 1, MAX_CHANNELS)
        for name in ("neck_patch", "stem_kernel", "stem_stride"):
            require_range(f"model.{name}", getattr(self, name), 1, MAX_PIXELS)
        require_range("model.stem_padding", self.stem_padding, 0, MAX_PIXELS)
        require_range("model.depth", self.depth, 1, MAX_LAYERS)
        for name in ("dense_depth", "regularized_depth"):
            require_range(f"model.{name}", getattr(self, name), 0, MAX_LAYERS)
        _require_even("width", self.width)
        _require_even("dense_width", self.dense_width)
        _require_word("backbone", self.backbone)
        parse_rank(self.rank)


@dataclass(frozen=True, kw_only=True)
class LipConvNetArchitecture:
    """LipConvNet-depth-width (App. B.2): five stages, each ending in a stride-2 layer that doubles the width.

    `backbone` names the convolution (docs/rivals.md). `rank` is n/m where a BRO layer keeps its channels; elsewhere
    n = min(c_in, c_out). `strided_last` places the strided layer at the end of its stage, as in the published code; the
    text has it first. `kernel` is that of all layers except the last strided one, which has 1.
    """

    family: Literal["lipconvnet"] = "lipconvnet"
    depth: int = 10
    width: int = 32
    rank: str = "1/8"
    backbone: str = "bro"
    kernel: int = 3
    activation: Literal["maxmin", "householder1", "householder2"] = "maxmin"
    head: HeadKind = "lln"
    strided_last: bool = True

    def __post_init__(self) -> None:
        require_range("model.width", self.width, 2, MAX_CHANNELS)
        _require_even("width", self.width)
        require_range("model.kernel", self.kernel, 1, MAX_PIXELS)
        require_range("model.depth", self.depth, 5, MAX_LAYERS)
        if self.depth % 5 != 0:
            raise BronetError(f"model.depth of a LipConvNet must be a multiple of 5, got {self.depth}")
        _require_word("backbone", self.backbone)
        parse_rank(self.rank)


@dataclass(frozen=True, kw_only=True)
class StackArchitecture:
    """A stack of one kind of layer, as the rivals of Table 1 were published (docs/rivals.md says what is assumed).

    The image is divided into `patch` x `patch` patches. Convolutions of `widths`, `kernels` and `strides` follow, then
    a mean over `pool` x `pool` pixels, and dense layers of `dense_widths`. `hidden` and `dense_hidden` are the inner
    widths of CPL and SLL. `activation` follows every layer, unless layers have their own nonlinearity.
    """

    family: Literal["stack"] = "stack"
    layer: str
    widths: tuple[int, ...]
    kernels: tuple[int, ...]
    strides: tuple[int, ...]
    dense_widths: tuple[int, ...] = ()
    patch: int = 1
    pool: int = 1
    hidden: int | None = None
    dense_hidden: int | None = None
    activation: Literal["maxmin", "none"] = "maxmin"

    def __post_init__(self) -> None:
        _require_word("layer", self.layer)
        if not len(self.widths) == len(self.kernels) == len(self.strides):
            counts = f"{len(self.widths)}, {len(self.kernels)} and {len(self.strides)}"
            raise BronetError(f"widths, kernels and strides must be equally long, got {counts} entries")
        require_range("layers of a stack", len(self.widths) + len(self.dense_widths), 0, MAX_LAYERS)
        for name, most in (
            ("widths", MAX_CHANNELS),
            ("dense_widths", MAX_CHANNELS),
            ("kernels", MAX_PIXELS),
            ("strides", MAX_PIXELS),
        ):
            for value in getattr(self, name):
                require_range(f"each of model.{name}", value, 1, most)
        for name in ("patch", "pool"):
            require_range(f"model.{name}", getattr(self, name), 1, MAX_PIXELS)
        for name in ("hidden", "dense_hidden"):
            inner = getattr(self, name)
            require_range(f"model.{name}", 1 if inner is None else inner, 1, MAX_CHANNELS)
        if self.activation == "maxmin":
            for width in (*self.widths, *self.dense_widths):
                _require_even("each of widths and dense_widths", width)


Architecture = BRONetArchitecture | LipConvNetArchitecture | StackArchitecture


def parse_rank(text: str) -> Fraction:
    """Return the rank ratio n/m of a text such as "1/4"; it must lie in (0, 1)."""
    if not isinstance(text, str) or not RANK_TEXT.fullmatch(text):
        raise BronetError(f'rank must be a fraction such as "1/4", without an exponent, got {text!r}')
    numerator, _, denominator = text.partition("/")
    if denominator and not int(denominator):
        raise BronetError(f"rank must not divide by zero, got {text!r}")
    ratio = Fraction(numerator) / int(denominator or 1)
    if not 0 < ratio < 1:
        raise BronetError(f"rank must satisfy 0 < n/m < 1 (n = m makes every layer -I), got {text}")
    return ratio


def _require_word(name: str, value: str) -> None:
    """Raise unless this could name a convolution; `create_model` checks whether one has the name."""
    if not is_short_word(value):
        raise BronetError(f"{name} must be a short word such as bro, in lower case, got {value!r}")


def _require_even(name: str, value: int) -> None:
    if value % 2:
        raise BronetError(f"{name} must be even (MaxMin pairs channels), got {value}")


def _potential_xl(layer: str) -> StackArchitecture:
    """CPL XL and SLL X-Large: 70 convolutions of width 120 (5 inside), then 15 dense layers (2048 inside)."""
    return StackArchitecture(
        layer=layer,
        widths=(120,) * 70,
        kernels=(3,) * 70,
        strides=(1,) * 70,
        pool=4,
        dense_widths=(120 * 64,) * 15,
        hidden=5,
        dense_hidden=2048,
        activation="none",
    )


_BRONETS: dict[str, Architecture] = {
    # CIFAR (Table 1, App. B.3)
    "bronet-m": BRONetArchitecture(rank="1/4", dense="bro"),
    "bronet-l": BRONetArchitecture(rank="1/2", dense="cholesky"),
    # Tiny-ImageNet (Table 9): BRO in neck and dense layers too
    "bronet-tiny": BRONetArchitecture(depth=6, dense_depth=4, rank="1/8", dense="bro", neck="bro"),
    # ImageNet (Table 1): 14 x 14 patches, six Lipschitz-regularised layers, kept padding, l2 pooling
    "bronet-imagenet": BRONetArchitecture(
        width=588,
        depth=8,
        rank="1/2",
        dense="cholesky",
        neck="l2pool",
        neck_patch=8,
        stem_kernel=14,
        stem_stride=14,
        stem_padding=0,
        regularized_depth=6,
        keep_padding=True,
    ),
    # LiResNet (the baseline of Tables 1 to 3), and Table 3's backbones in its place
    "liresnet": BRONetArchitecture(backbone="lipreg", dense="cholesky"),
    "liresnet-lot": BRONetArchitecture(backbone="lot", depth=2, dense="cholesky"),
    "liresnet-cayley": BRONetArchitecture(backbone="cayley", depth=6, dense="cholesky"),
    "liresnet-cholesky": BRONetArchitecture(backbone="cholesky", depth=6, dense="cholesky"),
    "liresnet-sll": BRONetArchitecture(backbone="sll", dense="cholesky"),
    "liresnet-soc": BRONetArchitecture(backbone="soc", dense="cholesky"),
    "liresnet-imagenet": BRONetArchitecture(
        width=588,
        depth=8,
        backbone="lipreg",
        dense="cholesky",
        neck="l2pool",
        neck_patch=4,
        stem_kernel=14,
        stem_stride=14,
        stem_padding=0,
        regularized_depth=6,
    ),
    # Table 12's two widths
    "bronet-l6w256d4": BRONetArchitecture(width=256, depth=6, dense_depth=4),
    "bronet-l6w512d4": BRONetArchitecture(width=512, depth=6, dense_depth=4),
    # BRONet-M at a quarter of its width, with half of its dense layers: two million parameters, not the paper's
    "bronet-s": BRONetArchitecture(width=128, dense_depth=4, dense_width=512),
    # Small models for CPUs
    "bronet-small": BRONetArchitecture(width=64, depth=4, dense_depth=2, dense_width=256),
    "bronet-digits": BRONetArchitecture(
        width=32, depth=4, dense_depth=2, dense_width=128, stem_kernel=3, stem_stride=1, stem_padding=1
    ),
}

_LIPCONVNETS: dict[str, Architecture] = {
    f"lipconvnet-{depth}-{width}": LipConvNetArchitecture(depth=depth, width=width)
    for depth in (5, 10, 15, 20)
    for width in (32, 48, 64)
}

_RIVALS: dict[str, Architecture] = {
    # The rivals of Table 1
    "soc-20": LipConvNetArchitecture(depth=20, width=32, backbone="soc"),
    "lot-20": LipConvNetArchitecture(depth=20, width=32, backbone="lot"),
    "cayley-large": StackArchitecture(
        layer="cayley", widths=(96, 96, 192, 192), kernels=(3, 1, 3, 1), strides=(1, 2, 1, 2), dense_widths=(1536, 512)
    ),
    "aol-large": StackArchitecture(
        layer="aol",
        patch=4,
        widths=(192,) * 13 + (48,),
        kernels=(1,) + (3,) * 12 + (1,),
        strides=(1,) * 14,
        dense_widths=(3072,) * 14,
    ),
    "cpl-xl": _potential_xl("cpl"),
    "sll-xl": _potential_xl("sll"),
    "sandwich": StackArchitecture(
        layer="sandwich",
        widths=(64, 64, 128, 128, 256, 256),
        kernels=(3, 1, 3, 1, 3, 1),
        strides=(1, 2, 1, 2, 1, 2),
        dense_widths=(2048, 2048, 1024),
        activation="none",
    ),
}

NAMED: dict[str, Architecture] = {**_BRONETS, **_LIPCONVNETS, **_RIVALS}
