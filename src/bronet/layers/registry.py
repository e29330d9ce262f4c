"""From one word to a convolution: every layer of the comparison behind the same call.

Options that a construction does not have (a rank, a residual, an image size) are refused rather than ignored. The
registry is open: `register_convolution` adds a kind of one's own (docs/own_layer.md).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from bronet.errors import BronetError
from bronet.layers.base import LipschitzLayer
from bronet.layers.bro_conv import BROConv2d
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
from bronet.recipe.convolution_kind import add_convolution_kind
from bronet.records import nearest


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked of a convolution, whatever its kind."""

    in_channels: int
    out_channels: int
    kernel_size: int
    rank: int | None
    stride: int
    circular: bool
    residual_depth: int | None
    hidden_channels: int | None
    input_size: tuple[int, int] | None
    device: torch.device | str | None
    dtype: torch.dtype | None


@dataclass(frozen=True)
class Kind:
    """How a kind of convolution is built, and which options it has."""

    build: Callable[[Request], LipschitzLayer]
    rank: bool = False
    residual: bool = False
    hidden: bool = False


def _plain(
    layer: type[SOCConv2d | CayleyConv2d | BCOPConv2d | AOLConv2d | SandwichConv2d | StandardConv2d],
) -> Callable[[Request], LipschitzLayer]:
    return lambda r: layer(
        r.in_channels,
        r.out_channels,
        r.kernel_size,
        stride=r.stride,
        circular=r.circular,
        device=r.device,
        dtype=r.dtype,
    )


def _residual(layer: type[LOTConv2d | CholeskyConv2d]) -> Callable[[Request], LipschitzLayer]:
    return lambda r: layer(
        r.in_channels,
        r.out_channels,
        r.kernel_size,
        stride=r.stride,
        circular=r.circular,
        residual_depth=r.residual_depth,
        device=r.device,
        dtype=r.dtype,
    )


def _bro(r: Request) -> LipschitzLayer:
    return BROConv2d(
        r.in_channels,
        r.out_channels,
        r.kernel_size,
        rank=r.rank,
        stride=r.stride,
        padding=0 if r.circular else None,
        residual_depth=r.residual_depth,
        device=r.device,
        dtype=r.dtype,
    )


def _regularized(r: Request) -> LipschitzLayer:
    if r.input_size is None:
        raise BronetError("input_size must be given to a lipreg convolution, whose norm is estimated at it, got None")
    if r.circular:
        raise BronetError("circular must be False for a lipreg convolution, which pads with zeros, got True")
    return LipschitzRegularizedConv2d(
        r.in_channels,
        r.out_channels,
        r.kernel_size,
        input_size=r.input_size,
        stride=r.stride,
        padding=r.kernel_size // 2,
        residual_depth=r.residual_depth,
        device=r.device,
        dtype=r.dtype,
    )


def _eco(r: Request) -> LipschitzLayer:
    """ECO is circular, asked for or not."""
    return ECOConv2d(r.in_channels, r.out_channels, r.kernel_size, stride=r.stride, device=r.device, dtype=r.dtype)


def _cpl(r: Request) -> LipschitzLayer:
    size = (16, 16) if r.input_size is None else (r.input_size[0] // r.stride, r.input_size[1] // r.stride)
    return CPLConv2d(
        r.in_channels,
        r.out_channels,
        r.kernel_size,
        hidden_channels=r.hidden_channels,
        input_size=size,
        stride=r.stride,
        circular=r.circular,
        device=r.device,
        dtype=r.dtype,
    )


def _sll(r: Request) -> LipschitzLayer:
    return SLLConv2d(
        r.in_channels,
        r.out_channels,
        r.kernel_size,
        hidden_channels=r.hidden_channels,
        stride=r.stride,
        circular=r.circular,
        device=r.device,
        dtype=r.dtype,
    )


CONVOLUTIONS: dict[str, Kind] = {
    "bro": Kind(_bro, rank=True, residual=True),
    "soc": Kind(_plain(SOCConv2d)),
    "lot": Kind(_residual(LOTConv2d), residual=True),
    "cayley": Kind(_plain(CayleyConv2d)),
    "cholesky": Kind(_residual(CholeskyConv2d), residual=True),
    "bcop": Kind(_plain(BCOPConv2d)),
    "eco": Kind(_eco),
    "aol": Kind(_plain(AOLConv2d)),
    "cpl": Kind(_cpl, hidden=True),
    "sll": Kind(_sll, hidden=True),
    "sandwich": Kind(_plain(SandwichConv2d)),
    "lipreg": Kind(_regularized, residual=True),
    "standard": Kind(_plain(StandardConv2d)),
}


def register_convolution(name: str, kind: Kind) -> None:
    """Make a convolution of one's own known by one word, to `convolution` and to recipes (`model.backbone=NAME`).

    Guaranteed: a certificate asks the layer itself for its proof, so it is as good as the layer's `proved`. A name that
    is taken is refused.
    """
    add_convolution_kind(name)
    CONVOLUTIONS[name] = kind


def convolution(
    kind: str,
    in_channels: int,
    out_channels: int,
    kernel_size: int = 3,
    *,
    rank: int | None = None,
    stride: int = 1,
    circular: bool = False,
    residual_depth: int | None = None,
    hidden_channels: int | None = None,
    input_size: tuple[int, int] | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> LipschitzLayer:
    """Return a convolution of this kind: "bro", "soc", "lot", "cayley", ... (`CONVOLUTIONS` has them all).

    Args:
        rank: n of a BRO convolution; no other kind has one.
        circular: wrap around the image instead of padding with zeros.
        residual_depth: L of the parameter I + alpha / sqrt(L) V, for kinds with a residual.
        hidden_channels: the inner width of CPL and SLL; as wide as the layer by default.
        input_size: the image's size before the stride; needed by "lipreg", used by "cpl" for its norm estimate.
    """
    if kind not in CONVOLUTIONS:
        raise BronetError(f"unknown convolution {kind!r}; the nearest known one is {nearest(kind, CONVOLUTIONS)!r}")
    known = CONVOLUTIONS[kind]
    if rank is not None and not known.rank:
        raise BronetError(f"rank must be left out for a {kind} convolution, which has none, got {rank}")
    if residual_depth is not None and not known.residual:
        raise BronetError(f"residual_depth must be left out for a {kind} convolution, got {residual_depth}")
    if hidden_channels is not None and not known.hidden:
        raise BronetError(f"hidden_channels must be left out for a {kind} convolution, got {hidden_channels}")
    request = Request(
        in_channels=in_channels,
        out_channels=out_channels,
        kernel_size=kernel_size,
        rank=rank,
        stride=stride,
        circular=circular,
        residual_depth=residual_depth,
        hidden_channels=hidden_channels,
        input_size=input_size,
        device=device,
        dtype=dtype,
    )
    return known.build(request)
