"""The Lipschitz counterparts of torch's functions: what a step of a classifier becomes.

A counterpart takes what the function takes, after the step. Where its image has another size than the step gives, it is
cut, or zeros are added around it, which raises no constant.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.graph import linear, moves, nonlinear
from bronet.graph.operations import RULES, Rule, Shape, pair_of
from bronet.layers import CONVOLUTIONS, Bias, BROConv2d, BROLinear, Centring, Flatten, MaxMin, MaxPool, PixelUnshuffle
from bronet.layers.shape import RepeatedPixels, ScaledMeanPool


@dataclass(frozen=True)
class Step:
    """A step of a classifier: the shapes of what it takes and gives, and the kind of convolution that is wanted.

    `given` are the function's other arguments by the names of its rule, `after` is the counterpart of the step before.
    """

    shape: Shape
    wanted: Shape
    kind: str
    given: Mapping[str, Any] = field(default_factory=dict)
    after: nn.Module | None = None


Counterpart = Callable[[Step], list[nn.Module] | None]
"""None means that the function stays."""


class Phases(nn.Module):
    """Patches of up x along pixels as channels."""

    def __init__(self, shape: Shape, up: int, along: int) -> None:
        super().__init__()
        c, h, w = shape
        self.apart, self.together = (c, h // up, up, w // along, along), (c * up * along, h // up, w // along)

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(-1, *self.apart).permute(0, 1, 3, 5, 2, 4).reshape(-1, *self.together)


class LastAxis(nn.Module):
    """A row of layers on the last axis, where the model has its channels."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x.transpose(1, -1))
        return y.transpose(1, -1)


# Layers with weights. Groups are not kept apart, as a reflector needs several channels, and a dilation only without a
# stride, behind which the taps of patches lie otherwise: both become one dense kernel.


def _convolution(step: Step) -> list[nn.Module]:
    (up, along), (apart, other) = pair_of(step.given["stride"]), pair_of(step.given["dilation"])
    kind, taps = CONVOLUTIONS[step.kind], _taps(step)
    made: list[nn.Module] = []
    if 1 < apart == other and up == along == 1 and kind.unshuffles and kind.padding_modes[0] == "zeros":
        made += _to_channels(step, max(step.given["weight"].shape[2:]), dilation=apart)
    elif up == along:
        made += _to_channels(step, taps, up)
    else:
        c_in, *size = step.shape
        phases = [math.ceil(n / f) for n, f in zip(size, (up, along), strict=True)]
        whole = [n * f for n, f in zip(phases, (up, along), strict=True)]
        made += [*_framed(size, whole, centred=False), Phases((c_in, *whole), up, along)]
        made += _to_channels(replace(step, shape=(c_in * up * along, *phases)), taps)
    return made if step.given["bias"] is None else [*made, Bias(step.wanted[0])]


def _transposed(step: Step) -> list[nn.Module]:
    taps, (factor, other), c_out = _taps(step), pair_of(step.given["stride"]), step.wanted[0]
    if factor != other:
        raise BronetError(f"stride must be the same along both axes to be converted, got {factor}, {other}")
    size = step.shape[1:]
    made = _to_channels(replace(step, wanted=(c_out * factor**2, *size)), 1 if taps == factor else taps)
    made += [nn.PixelShuffle(factor), *_framed([n * factor for n in size], step.wanted[1:])]
    return made if step.given["bias"] is None else [*made, Bias(c_out)]


def _taps(step: Step) -> int:
    """Return the extent of a kernel, the larger one, from its first tap to its last."""
    kernel, dilation = step.given["weight"].shape[2:], pair_of(step.given["dilation"])
    return max(d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))


def _to_channels(step: Step, taps: int, factor: int = 1, *, dilation: int = 1) -> list[nn.Module]:
    """Return a convolution without bias, framed so that the stride divides the image, and what comes out fits."""
    c_in, c_out = step.shape[0], step.wanted[0]
    size = [factor * math.ceil(n / factor) for n in step.shape[1:]]
    # Patches of the stride's size become channels; a kernel that is even is made odd behind the stride.
    taps = 1 if taps == factor else (taps if taps % 2 else taps // factor) // 2 * 2 + 1
    made: list[nn.Module]
    if taps == 1 and step.kind == "bro":
        # The same matrix at every frequency: a dense layer on the channels, without a transform.
        made = [PixelUnshuffle(factor), BROLinear(c_in * factor**2, c_out)] if c_out > 1 or c_in * factor > 1 else []
    else:
        sides = pair_of(size)
        conv = CONVOLUTIONS[step.kind](c_in, c_out, taps, stride=factor, input_size=sides, dilation=dilation)
        if isinstance(conv, BROConv2d):
            # At the identity, its own start, a layer with fewer outputs than inputs drops all but the first inputs, and
            # a network that widens its images before it narrows them can be zero: start at a random orthonormal V.
            middle = conv.kernel_size // 2
            nn.init.zeros_(conv.weight)
            nn.init.orthogonal_(conv.weight.data[:, :, middle, middle])
        made = [conv]
    before = _framed(step.shape[1:], size, centred=False)
    return [*before, *made, *_framed([n // factor for n in size], step.wanted[1:])]


def _framed(size: Sequence[int], wanted: Sequence[int], *, centred: bool = True) -> list[nn.Module]:
    """Cut an image, or add zeros, on all sides alike or at its ends, to another size; nothing where it is the same."""
    sides: list[int] = []
    for n, m in zip(reversed(size), reversed(wanted), strict=True):
        first = (m - n) // 2 if centred else 0
        sides += [first, m - n - first]
    return [nn.ZeroPad2d(tuple(sides))] if any(sides) else []  # type: ignore[arg-type]


def _linear(step: Step) -> list[nn.Module]:
    c_out, c_in = step.given["weight"].shape
    made = [BROLinear(c_in, c_out)] if step.given["bias"] is None else [BROLinear(c_in, c_out), Bias(c_out)]
    return [*made] if len(step.shape) == 1 else [LastAxis(*made)]


# Layers without: activations, norms, pools, moves.


def _activation(step: Step) -> list[nn.Module]:
    is_last = isinstance(step.after, LastAxis)
    channels = step.shape[-1 if is_last else 0]
    if channels % 2:
        raise BronetError(
            f"an activation must have an even number of channels, which MaxMin pairs, got {channels}; "
            f"make the layer before it {channels + 1} wide"
        )
    return [LastAxis(MaxMin()) if is_last else MaxMin()]


def _norm(step: Step) -> list[nn.Module]:
    """A norm of channels, which are last only where a layer norm is over that axis alone."""
    over = step.given.get("over")
    is_last = isinstance(over, (tuple, list)) and tuple(over) == step.shape[-1:] and len(step.shape) > 1
    return [LastAxis(Centring(step.shape[-1]))] if is_last else [Centring(step.shape[0])]


def _pool(step: Step, kind: type[MaxPool] | type[ScaledMeanPool] = ScaledMeanPool) -> list[nn.Module]:
    """Windows that do not overlap, about as large as the change of size."""
    size, wanted = step.shape[1:], step.wanted[1:]
    window = max(1, *(round(n / m) for n, m in zip(size, wanted, strict=True)))
    return [*_framed(size, [window * m for m in wanted]), *([] if window == 1 else [kind(window)])]


def _mean(step: Step) -> list[nn.Module] | None:
    """The mean over whole images; any other one stays as it is."""
    whole = (*step.shape[:1], 1, 1)
    if len(step.shape) != 3 or step.wanted not in (step.shape[:1], whole):
        return None
    pooled = _pool(replace(step, wanted=whole))
    return [*pooled, Flatten()] if len(step.wanted) == 1 else pooled


def _resized(step: Step) -> list[nn.Module]:
    factors = {m / n for n, m in zip(step.shape[1:], step.wanted[1:], strict=True)}
    factor = factors.pop()
    if factor < 1:
        return _pool(step)
    if factors or factor != int(factor):
        raise BronetError(f"a change of size must be by a whole factor, got {step.shape} to {step.wanted}")
    return [RepeatedPixels(int(factor))]


def _flatten(step: Step) -> list[nn.Module] | None:
    """Pixel by pixel, where one vector is made of an image; any other change of shape stays as it is."""
    if len(step.wanted) != 1:
        return None
    return [Flatten()] if len(step.shape) > 1 else []


def _padded(step: Step) -> list[nn.Module] | None:
    """Zeros instead of copies, of which a constant would be counted."""
    return None if step.given["mode"] == "constant" else [nn.ZeroPad2d(tuple(step.given["pad"]))]


COUNTERPARTS: dict[Rule, Counterpart] = {
    linear.conv2d: _convolution,
    linear.conv_transpose2d: _transposed,
    linear.linear: _linear,
    **dict.fromkeys((linear.batch_norm, nonlinear.divides), _norm),
    **dict.fromkeys((nonlinear.avg_pool2d, nonlinear.adaptive_avg_pool2d), _pool),
    **dict.fromkeys((nonlinear.max_pool2d, nonlinear.adaptive_max_pool2d), lambda step: _pool(step, MaxPool)),
    linear.mean: _mean,
    nonlinear.interpolate: _resized,
    moves.pad: _padded,
    moves.flatten: _flatten,
    moves.reshaped: _flatten,
    moves.dropout: lambda step: [],
    RULES["pixel_unshuffle"]: lambda step: [PixelUnshuffle(step.shape[1] // step.wanted[1])],
    **dict.fromkeys(nonlinear.ACTIVATIONS, _activation),
}
"""By the rule of a function."""
KNOWN = "convolutions, linear layers, activations, norms, pools, changes of size and shape, dropout, Lipschitz layers"
