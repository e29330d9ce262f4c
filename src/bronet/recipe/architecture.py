"""Architectures as frozen descriptions without tensors (App. B.2 and B.3); `bronet.models` builds the networks."""

import re
import reprlib
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Literal, NamedTuple, get_args, get_origin, get_type_hints

from bronet.errors import BronetError
from bronet.records import require_range
from bronet.wording import is_short_word

DenseKind = Literal["bro", "cholesky"]
NeckKind = Literal["bro", "cholesky", "l2pool"]
HeadKind = Literal["lln", "bro", "crc"]
PaddingMode = Literal["zeros", "circular"]

MAX_LAYERS = 1_000
MAX_CHANNELS = 65_536
MAX_PIXELS = 4_096
"""For the side of an image, a kernel, a stride or a padding."""
LONGEST_NAME = 200

# An exponent is not allowed: "1e999999999" would be an exact number of a billion digits.
IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
FRACTION_TEXT = re.compile(r"\d{1,18}(\.\d{1,18})?(/\d{1,18})?", re.ASCII)


class Limits(NamedTuple):
    """The least and the greatest value of a setting, in its annotation, and what it is a multiple of.

    In a tuple they are those of every entry.
    """

    least: float
    most: float
    step: int = 0


Channels = Annotated[int, Limits(1, MAX_CHANNELS)]
Pairs = Annotated[int, Limits(2, MAX_CHANNELS, 2)]
"""A number of channels that MaxMin can pair."""
Pixels = Annotated[int, Limits(1, MAX_PIXELS)]
Padding = Annotated[int, Limits(0, MAX_PIXELS)]
Layers = Annotated[int, Limits(0, MAX_LAYERS)]
MULTIPLES = {2: "even (MaxMin pairs channels)", 5: "a multiple of 5"}


def check_settings(record: object, table: str) -> None:
    """Refuse settings that are none of their choices (`Literal`), or outside their limits; None has none."""
    for name, hint in get_type_hints(type(record), include_extras=True).items():
        value = getattr(record, name)
        if get_origin(hint) is Literal and value not in get_args(hint):
            raise BronetError(f"{table}.{name} must be one of {', '.join(get_args(hint))}, got {value!r}")
        if get_origin(hint) is Annotated and value is not None:
            (_, (least, most, step)), several = get_args(hint), isinstance(value, tuple)
            full_name = f"each of {table}.{name}" if several else f"{table}.{name}"
            for entry in value if several else (value,):
                require_range(full_name, entry, least, most)
                if step and entry % step:
                    raise BronetError(f"{full_name} must be {MULTIPLES[step]}, got {entry}")


@dataclass(frozen=True, kw_only=True)
class BRONetArchitecture:
    """BRONet and LiResNet (App. B.2): stem, backbone of constant width, neck, dense layers, head.

    `backbone` names the convolution (docs/rivals.md). `rank` is n/m of a BRO backbone and of BRO dense layers, as a
    fraction in text ("1/4"). `padding_mode` is the backbone's, by default zeros where its convolution allows them. With
    `keep_padding` a BRO backbone does not remove the padding. `regularized_depth` counts the Lipschitz-regularised
    convolutions before the backbone (six on ImageNet). With `published_neck` the neck is that of the published code: no
    bias between its layers, which start from weights 6 and 23 times as large, and flatten (c, h, w).
    """

    family: Literal["bronet"] = "bronet"
    width: Pairs = 512
    depth: Annotated[int, Limits(1, MAX_LAYERS)] = 12
    dense_depth: Layers = 8
    dense_width: Pairs = 2048
    rank: str = "1/4"
    backbone: str = "bro"
    dense: DenseKind = "bro"
    neck: NeckKind = "cholesky"
    neck_patch: Pixels = 4
    published_neck: bool = False
    stem_kernel: Pixels = 5
    stem_stride: Pixels = 2
    stem_padding: Padding = 2
    regularized_depth: Layers = 0
    padding_mode: PaddingMode | None = None
    keep_padding: bool = False
    centring: bool = True

    def __post_init__(self) -> None:
        check_settings(self, "model")
        _require_word("backbone", self.backbone)
        parse_rank(self.rank)


@dataclass(frozen=True, kw_only=True)
class LipConvNetArchitecture:
    """LipConvNet-depth-width (App. B.2): five stages, each ending in a stride-2 layer that doubles the width.

    `backbone` names the convolution (docs/rivals.md). `rank` is n/m where a BRO layer keeps its channels; elsewhere
    n = min(c_in, c_out). `strided_last` places the strided layer at the end of its stage, as in the published code; the
    text has it first. `kernel` is that of all layers except the last strided one, which has 1. `head` is a normalised
    last layer ("lln"), a BRO layer ("bro") or a smooth hidden layer with curvature certificates ("crc").
    """

    family: Literal["lipconvnet"] = "lipconvnet"
    depth: Annotated[int, Limits(5, MAX_LAYERS, 5)] = 10
    width: Pairs = 32
    rank: str = "1/8"
    backbone: str = "bro"
    kernel: Pixels = 3
    activation: Literal["maxmin", "householder1", "householder2"] = "maxmin"
    head: HeadKind = "lln"
    strided_last: bool = True

    def __post_init__(self) -> None:
        check_settings(self, "model")
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
    widths: Annotated[tuple[int, ...], Limits(1, MAX_CHANNELS)]
    kernels: Annotated[tuple[int, ...], Limits(1, MAX_PIXELS)]
    strides: Annotated[tuple[int, ...], Limits(1, MAX_PIXELS)]
    dense_widths: Annotated[tuple[int, ...], Limits(1, MAX_CHANNELS)] = ()
    patch: Pixels = 1
    pool: Pixels = 1
    hidden: Annotated[int | None, Limits(1, MAX_CHANNELS)] = None
    dense_hidden: Annotated[int | None, Limits(1, MAX_CHANNELS)] = None
    activation: Literal["maxmin", "none"] = "maxmin"

    def __post_init__(self) -> None:
        _require_word("layer", self.layer)
        if not len(self.widths) == len(self.kernels) == len(self.strides):
            counts = f"{len(self.widths)}, {len(self.kernels)} and {len(self.strides)}"
            raise BronetError(f"widths, kernels and strides must be equally long, got {counts} entries")
        require_range("layers of a stack", len(self.widths) + len(self.dense_widths), 0, MAX_LAYERS)
        check_settings(self, "model")
        for width in (*self.widths, *self.dense_widths) if self.activation == "maxmin" else ():
            if width % 2:
                raise BronetError(f"each of widths and dense_widths must be {MULTIPLES[2]}, got {width}")


@dataclass(frozen=True, kw_only=True)
class LipNeXtArchitecture:
    """LipNeXt (arXiv 2601.18513) as far as it is known, and a variant of ours with block reflectors (docs/lipnext.md).

    Patches of `patch` x `patch` pixels are embedded isometrically in `width` channels; after `depth` blocks the l2 norm
    of each channel is taken. A block with `mixing` "manifold" is act(M R' S R (x + p) + b), with orthogonal matrices
    that optim.name manifold trains; with "reflectors" act(H S H' (x + p) + b), with block reflectors of `rank` n/m.
    `moved` is the share of the channels that S moves in each of four directions.
    """

    family: Literal["lipnext"] = "lipnext"
    depth: Annotated[int, Limits(1, MAX_LAYERS)] = 32
    width: Annotated[int, Limits(8, MAX_CHANNELS, 2)] = 1024
    patch: Pixels = 4
    moved: str = "1/16"
    mixing: Literal["manifold", "reflectors"] = "manifold"
    rank: str = "1/4"

    def __post_init__(self) -> None:
        check_settings(self, "model")
        parse_rank(self.rank)
        if not 0 < parse_fraction(self.moved, name="model.moved") <= Fraction(1, 4):
            raise BronetError(f"model.moved must satisfy 0 < moved <= 1/4, got {self.moved}")


@dataclass(frozen=True, kw_only=True)
class OwnArchitecture:
    """A network of the user's own code, such as "package.module:Net".

    The name is told, never imported: the user has to give it again, so that no file of a run can name code to run.
    """

    family: Literal["own"] = "own"
    name: str

    def __post_init__(self) -> None:
        check_import_path(self.name, what="model.name")


Architecture = BRONetArchitecture | LipConvNetArchitecture | StackArchitecture | LipNeXtArchitecture | OwnArchitecture


def check_import_path(text: str, *, what: str) -> None:
    """Refuse what does not have the form of a name to import."""
    if not isinstance(text, str) or len(text) > LONGEST_NAME or not IMPORT_PATH.fullmatch(text):
        raise BronetError(f"{what} must have the form package.module:Net, got {reprlib.repr(text)}")


def parse_fraction(text: str, *, name: str) -> Fraction:
    """Return the exact value of a text such as "36/255" or "0.5"; it is at least 0."""
    if not isinstance(text, str) or not FRACTION_TEXT.fullmatch(text):
        raise BronetError(f'{name} must be a number or fraction as text, such as "36/255", got {text!r}')
    numerator, _, denominator = text.partition("/")
    if denominator and not int(denominator):
        raise BronetError(f"{name} must not divide by zero, got {text!r}")
    return Fraction(numerator) / int(denominator or 1)


def parse_rank(text: str) -> Fraction:
    """Return the rank ratio n/m of a text such as "1/4"; it must lie in (0, 1)."""
    ratio = parse_fraction(text, name="rank")
    if not 0 < ratio < 1:
        raise BronetError(f"rank must satisfy 0 < n/m < 1 (n = m makes every layer -I), got {text}")
    return ratio


def _require_word(name: str, value: str) -> None:
    """Raise unless this could name a convolution; `create_model` checks whether one has the name."""
    if not is_short_word(value):
        raise BronetError(f"{name} must be a short word such as bro, in lower case, got {value!r}")


LIPCONVNET_DEPTHS, LIPCONVNET_WIDTHS = (5, 10, 15, 20), (32, 48, 64)
NAMED: dict[str, Architecture] = {
    # CIFAR (Table 1, App. B.3)
    "bronet-m": BRONetArchitecture(rank="1/4", dense="bro", published_neck=True),
    "bronet-l": BRONetArchitecture(rank="1/2", dense="cholesky", published_neck=True),
    # Tiny-ImageNet (Table 9): BRO in neck and dense layers too
    "bronet-tiny": replace(
        BRONetArchitecture(depth=6, dense_depth=4, rank="1/8", dense="bro", neck="bro"), published_neck=True
    ),
    # ImageNet (Table 1): 14 x 14 patches, six Lipschitz-regularised layers, kept padding, l2 pooling
    "bronet-imagenet": replace(
        BRONetArchitecture(width=588, depth=8, rank="1/2", dense="cholesky", neck="l2pool", neck_patch=8),
        stem_kernel=14,
        stem_stride=14,
        stem_padding=0,
        regularized_depth=6,
        keep_padding=True,
        published_neck=True,
    ),
    # LiResNet, the baseline of Tables 1 to 3
    "liresnet": BRONetArchitecture(backbone="lipreg", dense="cholesky", published_neck=True),
    # BRONet-M at a quarter of its width, with half of its dense layers: two million parameters, not the paper's
    "bronet-s": BRONetArchitecture(width=128, dense_depth=4, dense_width=512),
    # Small models for CPUs
    "bronet-small": BRONetArchitecture(width=64, depth=4, dense_depth=2, dense_width=256),
    "bronet-digits": BRONetArchitecture(
        width=32, depth=4, dense_depth=2, dense_width=128, stem_kernel=3, stem_stride=1, stem_padding=1
    ),
    # The best published since, of whose code nothing is known; and small ones beside it
    "lipnext-64m": LipNeXtArchitecture(),
    "lipnext-small": LipNeXtArchitecture(depth=8, width=64),
    **{
        f"lipconvnet-{depth}-{width}": LipConvNetArchitecture(depth=depth, width=width)
        for depth in LIPCONVNET_DEPTHS
        for width in LIPCONVNET_WIDTHS
    },
}
