"""Architectures as frozen descriptions without tensors (App. B.2 and B.3); `bronet.models` builds the networks."""

import re
import reprlib
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, ClassVar, Literal, NamedTuple, get_args, get_origin, get_type_hints

from bronet.errors import BronetError
from bronet.records import require_range
from bronet.wording import is_short_word

DenseKind = Literal["bro", "cholesky"]
MAX_LAYERS = 1_000
MAX_CHANNELS = 65_536
MAX_PIXELS = 4_096
"""For the side of an image, a kernel, a stride or a padding."""
LONGEST_NAME = 200
IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
# An exponent is not allowed: "1e999999999" would be an exact number of a billion digits.
FRACTION_TEXT = re.compile(r"\d{1,18}(\.\d{1,18})?(/\d{1,18})?", re.ASCII)
MULTIPLES = {2: "even (MaxMin pairs channels)", 5: "a multiple of 5"}


class Settings:
    """A table of a recipe, which refuses wrong settings when it is made.

    A setting must be one of its choices (`Literal`) or pass the check in its annotation, which is called with the
    setting, or each entry of a tuple, and its `name`; None needs no check.
    """

    table: ClassVar[str]

    def __init_subclass__(cls, table: str) -> None:
        cls.table = table

    def __post_init__(self) -> None:
        for field, hint in get_type_hints(type(self), include_extras=True).items():
            value, name = getattr(self, field), f"{self.table}.{field}"
            if get_origin(hint) is Literal and value not in get_args(hint):
                raise BronetError(f"{name} must be one of {', '.join(get_args(hint))}, got {value!r}")
            if get_origin(hint) is Annotated and value is not None:
                _, check = get_args(hint)
                for entry in value if isinstance(value, tuple) else (value,):
                    check(entry, name=f"each of {name}" if isinstance(value, tuple) else name)


class Limits(NamedTuple):
    """The least and the greatest value of a setting, and what it is a multiple of."""

    least: float
    most: float
    step: int = 1

    def __call__(self, value: float, *, name: str) -> None:
        require_range(name, value, self.least, self.most)
        if self.step > 1 and value % self.step:
            raise BronetError(f"{name} must be {MULTIPLES[self.step]}, got {value}")


def parse_fraction(text: str, *, name: str) -> Fraction:
    """Return the exact value of a text such as "36/255" or "0.5"; it is at least 0."""
    if not isinstance(text, str) or not FRACTION_TEXT.fullmatch(text):
        raise BronetError(f'{name} must be a number or fraction as text, such as "36/255", got {text!r}')
    numerator, _, denominator = text.partition("/")
    if denominator and not int(denominator):
        raise BronetError(f"{name} must not divide by zero, got {text!r}")
    return Fraction(numerator) / int(denominator or 1)


def parse_rank(text: str, *, name: str = "rank") -> Fraction:
    """Return the rank ratio n/m of a text such as "1/4"; it must lie in (0, 1)."""
    ratio = parse_fraction(text, name=name)
    if not 0 < ratio < 1:
        raise BronetError(f"{name} must satisfy 0 < n/m < 1 (n = m makes every layer -I), got {text}")
    return ratio


def check_word(text: str, *, name: str) -> None:
    """Raise unless this could name a convolution; `create_model` checks whether one has the name."""
    if not is_short_word(text):
        raise BronetError(f"{name} must be a short word such as bro, in lower case, got {text!r}")


def check_import_path(text: str, *, name: str) -> None:
    """Refuse what does not have the form of a name to import."""
    if not isinstance(text, str) or len(text) > LONGEST_NAME or not IMPORT_PATH.fullmatch(text):
        raise BronetError(f"{name} must have the form package.module:Net, got {reprlib.repr(text)}")


CHANNELS = Limits(1, MAX_CHANNELS)
PIXELS = Limits(1, MAX_PIXELS)
Pairs = Annotated[int, Limits(2, MAX_CHANNELS, 2)]
"""A number of channels that MaxMin can pair."""
Pixels = Annotated[int, PIXELS]
Padding = Annotated[int, Limits(0, MAX_PIXELS)]
Layers = Annotated[int, Limits(0, MAX_LAYERS)]
Blocks = Annotated[int, Limits(1, MAX_LAYERS)]
Rank = Annotated[str, parse_rank]
Word = Annotated[str, check_word]


@dataclass(frozen=True, kw_only=True)
class BRONetArchitecture(Settings, table="model"):
    """BRONet and LiResNet (App. B.2): stem, backbone of constant width, neck, dense layers, head.

    `backbone` names the convolution (docs/rivals.md). `rank` is n/m of a BRO backbone and of BRO dense layers, as a
    fraction in text ("1/4"). `padding_mode` is the backbone's, by default zeros where its convolution allows them. With
    `keep_padding` a BRO backbone does not remove the padding. `regularized_depth` counts the Lipschitz-regularised
    convolutions before the backbone (six on ImageNet). With `published_neck` the neck is that of the published code: no
    bias between its layers, which start from weights 6 and 23 times as large, and flatten (c, h, w).
    """

    family: Literal["bronet"] = "bronet"
    width: Pairs = 512
    depth: Blocks = 12
    dense_depth: Layers = 8
    dense_width: Pairs = 2048
    rank: Rank = "1/4"
    backbone: Word = "bro"
    dense: DenseKind = "bro"
    neck: Literal["bro", "cholesky", "l2pool"] = "cholesky"
    neck_patch: Pixels = 4
    published_neck: bool = False
    stem_kernel: Pixels = 5
    stem_stride: Pixels = 2
    stem_padding: Padding = 2
    regularized_depth: Layers = 0
    padding_mode: Literal["zeros", "circular"] | None = None
    keep_padding: bool = False
    centring: bool = True


@dataclass(frozen=True, kw_only=True)
class LipConvNetArchitecture(Settings, table="model"):
    """LipConvNet-depth-width (App. B.2): five stages, each ending in a stride-2 layer that doubles the width.

    `backbone` names the convolution (docs/rivals.md). `rank` is n/m where a BRO layer keeps its channels; elsewhere
    n = min(c_in, c_out). `strided_last` places the strided layer at the end of its stage, as in the published code; the
    text has it first. `kernel` is that of all layers except the last strided one, which has 1. `head` is a normalised
    last layer ("lln"), a BRO layer ("bro") or a smooth hidden layer with curvature certificates ("crc").
    """

    family: Literal["lipconvnet"] = "lipconvnet"
    depth: Annotated[int, Limits(5, MAX_LAYERS, 5)] = 10
    width: Pairs = 32
    rank: Rank = "1/8"
    backbone: Word = "bro"
    kernel: Pixels = 3
    activation: Literal["maxmin", "householder1", "householder2"] = "maxmin"
    head: Literal["lln", "bro", "crc"] = "lln"
    strided_last: bool = True


@dataclass(frozen=True, kw_only=True)
class StackArchitecture(Settings, table="model"):
    """A stack of one kind of layer, as the rivals of Table 1 were published (docs/rivals.md says what is assumed).

    The image is divided into `patch` x `patch` patches. Convolutions of `widths`, `kernels` and `strides` follow, then
    a mean over `pool` x `pool` pixels, and dense layers of `dense_widths`. `hidden` and `dense_hidden` are the inner
    widths of CPL and SLL. `activation` follows every layer, unless layers have their own nonlinearity.
    """

    family: Literal["stack"] = "stack"
    layer: Word
    widths: Annotated[tuple[int, ...], CHANNELS]
    kernels: Annotated[tuple[int, ...], PIXELS]
    strides: Annotated[tuple[int, ...], PIXELS]
    dense_widths: Annotated[tuple[int, ...], CHANNELS] = ()
    patch: Pixels = 1
    pool: Pixels = 1
    hidden: Annotated[int | None, CHANNELS] = None
    dense_hidden: Annotated[int | None, CHANNELS] = None
    activation: Literal["maxmin", "none"] = "maxmin"

    def __post_init__(self) -> None:
        if not len(self.widths) == len(self.kernels) == len(self.strides):
            counts = f"{len(self.widths)}, {len(self.kernels)} and {len(self.strides)}"
            raise BronetError(f"widths, kernels and strides must be equally long, got {counts} entries")
        require_range("layers of a stack", len(self.widths) + len(self.dense_widths), 0, MAX_LAYERS)
        super().__post_init__()
        for width in (*self.widths, *self.dense_widths) if self.activation == "maxmin" else ():
            if width % 2:
                raise BronetError(f"each of widths and dense_widths must be {MULTIPLES[2]}, got {width}")


@dataclass(frozen=True, kw_only=True)
class LipNeXtArchitecture(Settings, table="model"):
    """LipNeXt (arXiv 2601.18513) as far as it is known, and a variant of ours with block reflectors (docs/lipnext.md).

    Patches of `patch` x `patch` pixels are embedded isometrically in `width` channels; after `depth` blocks the l2 norm
    of each channel is taken. A block with `mixing` "manifold" is act(M R' S R (x + p) + b), with orthogonal matrices
    that optim.name manifold trains; with "reflectors" act(H S H' (x + p) + b), with block reflectors of `rank` n/m.
    `moved` is the share of the channels that S moves in each of four directions.
    """

    family: Literal["lipnext"] = "lipnext"
    depth: Blocks = 32
    width: Annotated[int, Limits(8, MAX_CHANNELS, 2)] = 1024
    patch: Pixels = 4
    moved: str = "1/16"
    mixing: Literal["manifold", "reflectors"] = "manifold"
    rank: Rank = "1/4"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < parse_fraction(self.moved, name="model.moved") <= Fraction(1, 4):
            raise BronetError(f"model.moved must satisfy 0 < moved <= 1/4, got {self.moved}")


@dataclass(frozen=True, kw_only=True)
class OwnArchitecture(Settings, table="model"):
    """A network of the user's own code, such as "package.module:Net".

    The name is told, never imported: the user has to give it again, so that no file of a run can name code to run.
    """

    family: Literal["own"] = "own"
    name: Annotated[str, check_import_path]


Architecture = BRONetArchitecture | LipConvNetArchitecture | StackArchitecture | LipNeXtArchitecture | OwnArchitecture

LIPCONVNET_DEPTHS, LIPCONVNET_WIDTHS = (5, 10, 15, 20), (32, 48, 64)
NAMED: dict[str, Architecture] = {
    # CIFAR (Table 1, App. B.3)
    "bronet-m": BRONetArchitecture(published_neck=True),
    "bronet-l": BRONetArchitecture(rank="1/2", dense="cholesky", published_neck=True),
    # Tiny-ImageNet (Table 9): BRO in neck and dense layers too
    "bronet-tiny": BRONetArchitecture(depth=6, dense_depth=4, rank="1/8", neck="bro", published_neck=True),
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
