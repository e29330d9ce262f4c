"""The Lipschitz counterparts of torch's functions: what a step of a classifier becomes.

A counterpart takes what the function takes, after the step. What it makes is cut or padded with zeros to the shape that
the step gives, which raises no constant.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.graph import linear, moves, nonlinear
from bronet.graph.operations import RULES, Rule, Shape, pair_of
from bronet.layers import (
    Bias,
    BROConv2d,
    BROLinear,
    Centring,
    Flatten,
    MaxMin,
    MaxPool,
    PixelUnshuffle,
    create_convolution,
)
from bronet.layers.shape import ScaledMeanPool


@dataclass(frozen=True)
class Step:
    """A step of a classifier: the shapes of what it takes and gives, and the kind of convolution that is wanted."""

    shape: Shape
    wanted: Shape
    kind: str


class Mix(nn.Module):
    """(1 - w) x + w y, where w = sigmoid(weight) is learned: no more Lipschitz than the more Lipschitz of the two."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        w = torch.sigmoid(self.weight)
        return (1 - w) * x + w * y


def _convolution(  # noqa: PLR0917
    step: Step,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: object = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> list[nn.Module]:
    for name, value, due in (("groups", groups, 1), ("dilation", pair_of(dilation), (1, 1))):
        if value != due:
            raise BronetError(f"{name} of a Conv2d must be {due} to be converted, got {value}")
    taps, factor = _square("kernel_size", weight.shape[2:]), _square("stride", stride)
    if any(size % factor for size in step.shape[1:]):
        raise BronetError(f"stride {factor} of a Conv2d must divide the image to be converted, got {step.shape[1:]}")
    c_out, c_in = weight.shape[:2]
    taps = 1 if taps == factor else taps  # a patch is what the pixel unshuffle makes channels of
    made: list[nn.Module]
    if taps == 1 and step.kind == "bro":
        # The same matrix at every frequency: a dense layer on the channels, without a transform.
        made = [PixelUnshuffle(factor), BROLinear(c_in * factor**2, c_out)]
    else:
        conv = create_convolution(step.kind, c_in, c_out, taps, stride=factor, input_size=pair_of(step.shape[1:]))
        if isinstance(conv, BROConv2d):
            # At the identity, its own start, a layer with fewer outputs than inputs drops all but the first inputs, and
            # a network that widens its images before it narrows them can be zero: start at a random orthonormal V.
            middle = conv.kernel_size // 2
            nn.init.zeros_(conv.weight)
            nn.init.orthogonal_(conv.weight.data[:, :, middle, middle])
        made = [conv]
    return made if bias is None else [*made, Bias(c_out)]


def _linear(step: Step, weight: Tensor, bias: Tensor | None = None) -> list[nn.Module]:
    if len(step.shape) != 1:
        raise BronetError(f"a Linear must follow a Flatten to be converted, got activations of shape {step.shape}")
    c_out, c_in = weight.shape
    return [BROLinear(c_in, c_out)] if bias is None else [BROLinear(c_in, c_out), Bias(c_out)]


def _activation(step: Step, *_: object, **__: object) -> list[nn.Module]:
    channels = step.shape[0]
    if channels % 2:
        raise BronetError(
            f"an activation must have an even number of channels, which MaxMin pairs, got {channels}; "
            f"make the layer before it {channels + 1} wide"
        )
    return [MaxMin()]


def _pool(kind: type[MaxPool] | type[ScaledMeanPool]) -> Callable[..., list[nn.Module]]:
    """Return the counterpart of a pool: windows that do not overlap, as large as the change of shape asks for."""

    def counterpart(step: Step, size: object = 1, *_: object, **__: object) -> list[nn.Module]:
        windows = {a / b for a, b in zip(step.shape[1:], step.wanted[1:], strict=True)}
        window = next(iter(windows))
        if len(windows) > 1 or window != int(window):
            raise BronetError(
                f"windows of a pool must be square and whole to be converted, got {step.shape} to {step.wanted}"
            )
        if window == 1 and size not in (1, (1, 1), step.shape[1:]):
            raise BronetError(
                "windows of a pool must not overlap, but here one starts at every pixel; give it a stride"
            )
        return [] if window == 1 else [kind(int(window))]

    return counterpart


def _mean(step: Step, dim: object = None, keepdim: bool = False) -> list[nn.Module] | None:
    """The mean over whole images; any other one stays as it is."""
    if len(step.shape) != 3 or step.wanted not in (step.shape[:1], (step.shape[0], 1, 1)):
        return None
    pooled = _pool(ScaledMeanPool)(Step(step.shape, (step.shape[0], 1, 1), step.kind), step.shape[1:])
    return [*pooled, Flatten()] if len(step.wanted) == 1 else pooled


def _flatten(step: Step, *_: object, **__: object) -> list[nn.Module] | None:
    """Pixel by pixel, where one vector is made of an image; any other change of shape stays as it is."""
    if len(step.wanted) != 1:
        return None
    return [Flatten()] if len(step.shape) > 1 else []


def _square(name: str, value: int | Sequence[int]) -> int:
    """Return the common entry of a size along both axes."""
    first, second = pair_of(value)
    if first != second:
        raise BronetError(f"{name} must be the same along both axes to be converted, got {tuple(value)}")  # type: ignore[arg-type]
    return first


COUNTERPARTS: dict[Rule, Callable[..., list[nn.Module] | None]] = {
    linear.conv2d: _convolution,
    linear.linear: _linear,
    linear.batch_norm: lambda step, *_, **__: [Centring(step.shape[0])],
    linear.avg_pool2d: _pool(ScaledMeanPool),
    linear.adaptive_avg_pool2d: _pool(ScaledMeanPool),
    linear.mean: _mean,
    nonlinear.max_pool2d: _pool(MaxPool),
    nonlinear.adaptive_max_pool2d: _pool(MaxPool),
    moves.flatten: _flatten,
    moves.reshaped: _flatten,
    moves.dropout: lambda step, *_, **__: [],
    RULES["pixel_unshuffle"]: lambda step, factor: [PixelUnshuffle(factor)],
    **dict.fromkeys(nonlinear.ACTIVATIONS, _activation),
}
"""By the rule of a function; None of a counterpart means that the function stays."""
KNOWN = "convolutions, linear layers, activations, batch norms, pools, flattening, dropout and Lipschitz layers"
