"""From one word to a convolution: every layer of the comparison, and layers of one's own, behind the same call."""

from typing import Any

import torch

from bronet.errors import BronetError
from bronet.layers.bro_conv import BROConv2d
from bronet.layers.convolution import AnyConvolution, Convolution, PaddingMode
from bronet.layers.regularized_conv import LipschitzRegularizedConv2d
from bronet.layers.rivals import (
    AOLConv2d,
    BCOPConv2d,
    CayleyConv2d,
    CholeskyConv2d,
    CPLConv2d,
    ECOConv2d,
    LOTConv2d,
    SandwichConv2d,
    SLLConv2d,
    SOCConv2d,
    StandardConv2d,
)
from bronet.wording import is_short_word

CONVOLUTIONS: dict[str, type[AnyConvolution]] = {
    "bro": BROConv2d,
    "soc": SOCConv2d,
    "lot": LOTConv2d,
    "cayley": CayleyConv2d,
    "cholesky": CholeskyConv2d,
    "bcop": BCOPConv2d,
    "eco": ECOConv2d,
    "aol": AOLConv2d,
    "cpl": CPLConv2d,
    "sll": SLLConv2d,
    "sandwich": SandwichConv2d,
    "lipreg": LipschitzRegularizedConv2d,
    "standard": StandardConv2d,
}


def register_convolution(name: str, kind: type[AnyConvolution]) -> None:
    """Make a convolution of one's own known by one word: to `create_convolution`, and to recipes (`model.backbone`).

    Its constructor takes the arguments of `Convolution`, `device` and `dtype`, and whatever its `options` name. A
    certificate asks the layer for its proof, and is as good as that. A name that is taken is refused.
    """
    if not isinstance(name, str) or not is_short_word(name):
        raise BronetError(f"name of a convolution must be a short word such as my-layer, in lower case, got {name!r}")
    if name in CONVOLUTIONS:
        raise BronetError(f"name of a convolution must be new, but {name!r} is registered already; choose another")
    if not (isinstance(kind, type) and issubclass(kind, Convolution)):
        raise BronetError(f"a convolution must be a class derived from bronet.layers.Convolution, got {kind!r}")
    CONVOLUTIONS[name] = kind


def convolution_named(name: str) -> type[AnyConvolution]:
    """Return the kind of convolution of this name, or raise where there is none."""
    if name not in CONVOLUTIONS:
        raise BronetError(
            f"convolution must be one of {', '.join(CONVOLUTIONS)}, got {name!r}; "
            "a layer of your own is made known by bronet --layers FILE ..."
        )
    return CONVOLUTIONS[name]


def create_convolution(
    name: str,
    in_channels: int,
    out_channels: int,
    kernel_size: int = 3,
    *,
    stride: int = 1,
    padding: int | None = None,
    padding_mode: PaddingMode | None = None,
    input_size: tuple[int, int] | None = None,
    rank: int | None = None,
    residual_depth: int | None = None,
    hidden_channels: int | None = None,
    keep_padding: bool = False,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> AnyConvolution:
    """Return a convolution of this kind: "bro", "soc", "lot", "cayley", ... (`CONVOLUTIONS` has them all).

    The arguments are those of `Convolution`; without a `padding_mode` the kind's own default holds, which is zeros
    wherever it has them. Options that the kind does not have are refused.

    Args:
        rank: n of a BRO convolution.
        residual_depth: L of the parameter I + alpha / sqrt(L) V, for kinds with a residual.
        hidden_channels: the inner width of CPL and SLL; as wide as the layer by default.
        keep_padding: return the padded grid of a BRO convolution instead of cropping it.
    """
    kind = convolution_named(name)
    wanted = {
        "rank": rank,
        "residual_depth": residual_depth,
        "hidden_channels": hidden_channels,
        "keep_padding": keep_padding or None,
    }
    given = {option: value for option, value in wanted.items() if value is not None}
    for option, value in given.items():
        if option not in kind.options:
            raise BronetError(f"{option} must be left out for a {name} convolution, which has none, got {value}")
    arguments: dict[str, Any] = {**given, "device": device, "dtype": dtype}
    if padding_mode is not None:
        arguments["padding_mode"] = padding_mode
    return kind(
        in_channels,
        out_channels,
        kernel_size,
        stride=stride,
        padding=padding,
        input_size=input_size,
        **arguments,
    )
