"""The Lipschitz counterparts of torch's modules, and of the functions that stand for them.

A counterpart is given the module, the shape of what it takes, that of what it gives, and the kind of convolution.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from bronet.errors import BronetError
from bronet.graph import moves, nonlinear
from bronet.graph.operations import Shape
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


class Mix(nn.Module):
    """(1 - w) x + w y, where w = sigmoid(weight) is learned: no more Lipschitz than the more Lipschitz of the two."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        w = torch.sigmoid(self.weight)
        return (1 - w) * x + w * y


def as_module(node: fx.Node) -> nn.Module | None:
    """Return the module that a function or method stands for, if it is one that is converted."""
    shape, arguments = node.meta["shape"], node.args[1:]
    if node.target in nonlinear.ACTIVATIONS:
        return nn.ReLU()
    rule = moves.FUNCTIONS.get(node.target)
    if rule is moves.dropout:
        return nn.Dropout()
    source = node.all_input_nodes[0].meta["shape"]
    if rule in (moves.reshaped, moves.flatten) and len(shape) == 1:
        return nn.Flatten()
    if node.target in (torch.mean, "mean") and source is not None and len(source) == 3 and shape[:1] == source[:1]:
        is_mean = {d % 4 for d in _dims(node)} == {2, 3}
        return _GlobalMean() if is_mean else None
    kind = _POOLS.get(node.target)
    options = {key: value for key, value in node.kwargs.items() if key != "input"}
    return kind(*arguments, **options) if kind is not None else None


def _dims(node: fx.Node) -> tuple[int, ...]:
    dims: Any = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else ())
    return (dims,) if isinstance(dims, int) else tuple(dims)


class _GlobalMean(nn.Module):
    """Stands for x.mean((2, 3))."""


def _convolution(module: nn.Module, shape: Shape, wanted: Shape, kind: str) -> list[nn.Module]:
    assert isinstance(module, nn.Conv2d)
    for name, value, due in (
        ("groups", module.groups, 1),
        ("dilation", module.dilation, (1, 1)),
        ("padding_mode", module.padding_mode, "zeros"),
    ):
        if value != due:
            raise BronetError(f"{name} of a Conv2d must be {due} to be converted, got {value}")
    kernel, stride = _square("kernel_size", module.kernel_size), _square("stride", module.stride)
    if any(size % stride for size in shape[1:]):
        raise BronetError(f"stride {stride} of a Conv2d must divide the image to be converted, got {shape[1:]}")
    taps = 1 if kernel == stride else kernel  # a patch is what the pixel unshuffle makes channels of
    c_in, c_out = module.in_channels, module.out_channels
    made: list[nn.Module]
    if taps == 1 and kind == "bro":
        # The same matrix at every frequency: a dense layer on the channels, without a transform.
        made = [PixelUnshuffle(stride), BROLinear(c_in * stride**2, c_out)]
    else:
        conv = create_convolution(kind, c_in, c_out, taps, stride=stride, input_size=(shape[1], shape[2]))
        if isinstance(conv, BROConv2d):
            # At the identity, its own start, a layer with fewer outputs than inputs drops all but the first inputs, and
            # a network that widens its images before it narrows them can be zero: start at a random orthonormal V.
            middle = conv.kernel_size // 2
            nn.init.zeros_(conv.weight)
            nn.init.orthogonal_(conv.weight.data[:, :, middle, middle])
        made = [conv]
    return made if module.bias is None else [*made, Bias(c_out)]


def _linear(module: nn.Module, shape: Shape, wanted: Shape, kind: str) -> list[nn.Module]:
    assert isinstance(module, nn.Linear)
    if len(shape) != 1:
        raise BronetError(f"a Linear must follow a Flatten to be converted, got activations of shape {shape}")
    layer = BROLinear(module.in_features, module.out_features)
    return [layer] if module.bias is None else [layer, Bias(module.out_features)]


def _activation(module: nn.Module, shape: Shape, wanted: Shape, kind: str) -> list[nn.Module]:
    if shape[0] % 2:
        raise BronetError(
            f"an activation must have an even number of channels, which MaxMin pairs, got {shape[0]}; "
            f"make the layer before it {shape[0] + 1} wide"
        )
    return [MaxMin()]


def _pool(module: nn.Module, shape: Shape, wanted: Shape, kind: str) -> list[nn.Module]:
    """Windows that do not overlap, of the size that takes the image to its new shape."""
    windows = {shape[1] / wanted[1], shape[2] / wanted[2]}
    window = next(iter(windows))
    if len(windows) > 1 or window != int(window):
        raise BronetError(f"windows of a pool must be square and whole to be converted, got {shape} to {wanted}")
    if window == 1 and getattr(module, "kernel_size", 1) not in (1, (1, 1)):
        raise BronetError("windows of a pool must not overlap, but here one starts at every pixel; give it a stride")
    is_max = isinstance(module, (nn.MaxPool2d, nn.AdaptiveMaxPool2d))
    return [] if window == 1 else [MaxPool(int(window)) if is_max else ScaledMeanPool(int(window))]


def _global_mean(module: nn.Module, shape: Shape, wanted: Shape, kind: str) -> list[nn.Module]:
    pooled = _pool(module, shape, (shape[0], 1, 1), kind)
    return [*pooled, Flatten()] if len(wanted) == 1 else pooled


def _square(name: str, value: int | str | tuple[int, ...]) -> int:
    """Return the common entry of a size along both axes."""
    sizes = {value} if isinstance(value, int) else set(value)
    size = sizes.pop()
    if sizes or not isinstance(size, int):
        raise BronetError(f"{name} must be the same along both axes to be converted, got {value}")
    return size


Counterpart = Callable[[nn.Module, Shape, Shape, str], list[nn.Module]]
_POOLS: dict[Any, type[nn.Module]] = {
    F.max_pool2d: nn.MaxPool2d,
    F.avg_pool2d: nn.AvgPool2d,
    F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
    F.adaptive_max_pool2d: nn.AdaptiveMaxPool2d,
}
COUNTERPARTS: dict[type[nn.Module], Counterpart] = {
    nn.Conv2d: _convolution,
    nn.Linear: _linear,
    **dict.fromkeys((*_POOLS.values(),), _pool),
    _GlobalMean: _global_mean,
    nn.Flatten: lambda module, shape, wanted, kind: [Flatten()] if len(shape) > 1 else [],
    nn.PixelUnshuffle: lambda module, shape, wanted, kind: [PixelUnshuffle(shape[1] // wanted[1])],
    **dict.fromkeys(nonlinear.ACTIVATION_MODULES, _activation),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d), lambda module, shape, wanted, kind: [Centring(shape[0])]),
    **dict.fromkeys(
        (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout), lambda module, shape, wanted, kind: []
    ),
}
KNOWN = "Conv2d, Linear, activations, batch norms, pools, Flatten, PixelUnshuffle, Dropout and Lipschitz layers"
