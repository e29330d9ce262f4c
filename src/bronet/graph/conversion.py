"""`convert`: a plain torch model rebuilt of Lipschitz layers, step by step, or refused naming the step that cannot be.

Shapes of the model are kept, its weights are not: a reflector's parameter is no convolution kernel. Train the result.
"""

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import nn

from bronet.errors import BronetError
from bronet.graph.maps import Shape
from bronet.graph.model import CertifiableModel, Chain
from bronet.graph.steps import Step, output_shape, read_steps
from bronet.graph.tracing import kind_of
from bronet.layers import (
    Bias,
    Block,
    BROConv2d,
    BROLinear,
    Centring,
    Flatten,
    Head,
    LastLayerNormalized,
    LipschitzLayer,
    MaxMin,
    MaxPool,
    Normalization,
    PixelUnshuffle,
    create_convolution,
)
from bronet.layers.base import checked_shape
from bronet.layers.shape import ScaledMeanPool

_ACTIVATIONS = (
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.PReLU,
    nn.ELU,
    nn.SELU,
    nn.CELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Softplus,
    nn.Hardtanh,
    nn.Hardswish,
    nn.Tanh,
    nn.Sigmoid,
)
_REMOVED = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
Rule = Callable[[nn.Module, Shape, str], list[LipschitzLayer]]


def convert(
    model: nn.Module,
    input_shape: tuple[int, int, int],
    *,
    layer: str = "bro",
    mean: Sequence[float] | None = None,
    std: float = 1.0,
    seed: int = 0,
) -> Chain:
    """Return a certifiable network with the shapes of a plain torch model, for training from scratch.

    Guaranteed: every layer of the result has a proved constant, one for all but the normalisation (1 / std), the head,
    and kinds of `layer` that are only regularised; each step's output has the shape it had. Not kept: the weights.

    Convolutions become `layer` convolutions, linear layers `BROLinear`, the last one `LastLayerNormalized`, activations
    `MaxMin`, batch norms `Centring` (no division), means over windows `ScaledMeanPool`; dropout goes.

    Args:
        input_shape: (channel, height, width) of an image with pixels in [0, 1].
        layer: the kind of convolution, a word of `bronet.layers.CONVOLUTIONS`.
        mean, std: of the normalisation that becomes the first layer; by default 0.5 is subtracted.
        seed: of the new weights.
    """
    if isinstance(model, CertifiableModel):
        raise BronetError(
            f"model must be a plain torch model, got {type(model).__name__}, which is certifiable already"
        )
    channels = checked_shape(input_shape)[0]
    means = (0.5,) * channels if mean is None else mean
    if not isinstance(means, Sequence) or not all(isinstance(value, (int, float)) for value in means):
        raise BronetError(f"mean must be a sequence of numbers, one for each channel, got {mean!r}")
    if len(means) != channels:
        raise BronetError(f"mean must have one value for each of {channels} channels, got {len(means)}")
    steps = [step for step in read_steps(model) if not isinstance(step.module, _REMOVED)]
    for path, count in Counter(step.path for step in steps if any(True for _ in step.module.parameters())).items():
        if count > 1:
            raise BronetError(f"{path} must be used once to be converted, as shared weights are not kept, got {count}")
    if not steps or kind_of(steps[-1].module) is not nn.Linear:
        last = f"{steps[-1].path} ({steps[-1].kind})" if steps else "nothing"
        own = "; bronet.Chain takes bronet's own layers" if steps and isinstance(steps[-1].module, Head) else ""
        raise BronetError(f"the last step must be a torch.nn.Linear that returns logits, got {last}{own}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers, shape = _converted(steps[:-1], input_shape, layer)
        head = _head(steps[-1], shape)
    named: dict[str, LipschitzLayer | Block] = {"normalization": Normalization(tuple(means), std=std)}
    return Chain(input_shape, named | _blocks(layers), head)


def _converted(steps: Sequence[Step], shape: Shape, kind: str) -> tuple[list[tuple[str, LipschitzLayer]], Shape]:
    """Return the layers with the paths of the steps they stand for, and the shape behind them."""
    layers: list[tuple[str, LipschitzLayer]] = []
    for step in steps:
        expected = output_shape(step, shape)
        try:
            made = _rule(step.module)(step.module, shape, kind)
        except BronetError as error:
            raise BronetError(f"{step.path}: {error}") from None
        for part in made:
            shape = output_shape(Step(step.path, part), shape)
        if shape != expected:
            raise BronetError(
                f"{step.path}: a Lipschitz counterpart of {step.kind} must keep its output's shape {expected}, but it "
                f"gives {shape}; use a padding of half the kernel, and a stride that divides the image"
            )
        layers += [(step.path, part) for part in made]
    # A batch norm's own shift makes the bias before it superfluous.
    kept = [
        (path, part)
        for (path, part), (_, following) in pairwise([*layers, ("", MaxMin())])
        if not (isinstance(part, Bias) and isinstance(following, Centring))
    ]
    return kept, shape


def _blocks(layers: Sequence[tuple[str, LipschitzLayer]]) -> dict[str, LipschitzLayer | Block]:
    """Return the layers by name, a layer with its shift and MaxMin as one block, which runs faster on a GPU."""
    named: dict[str, LipschitzLayer | Block] = {}
    position = 0
    while position < len(layers):
        path, part = layers[position]
        rest = [following for _, following in layers[position + 1 : position + 3]]
        name = f"{len(named)}_{_word(path)}"
        if len(rest) == 2 and isinstance(rest[0], (Bias, Centring)) and isinstance(rest[1], MaxMin):
            named[name] = Block(part, rest[0], rest[1])
            position += 3
        else:
            named[name] = part
            position += 1
    return named


def _word(path: str) -> str:
    """Return a path as a part of a module's name, which must have no dots."""
    return "_".join("".join(c if c.isalnum() else " " for c in path).split())


def _rule(module: nn.Module) -> Rule:
    """Return how a module is converted: by its exact type, as a subclass could do anything."""
    if isinstance(module, LipschitzLayer):
        return _kept
    if kind_of(module) not in _RULES:
        known = "Conv2d, Linear, activations, batch norms, pools, Flatten, PixelUnshuffle, Dropout and Lipschitz layers"
        raise BronetError(f"{kind_of(module).__name__} has no Lipschitz counterpart; {known} have")
    return _RULES[kind_of(module)]


def _kept(module: nn.Module, shape: Shape, kind: str) -> list[LipschitzLayer]:
    assert isinstance(module, LipschitzLayer)
    return [copy.deepcopy(module)]


def _convolution(module: nn.Module, shape: Shape, kind: str) -> list[LipschitzLayer]:
    assert isinstance(module, nn.Conv2d)
    for name, value, wanted in (
        ("groups", module.groups, 1),
        ("dilation", module.dilation, (1, 1)),
        ("padding_mode", module.padding_mode, "zeros"),
    ):
        if value != wanted:
            raise BronetError(f"{name} of a Conv2d must be {wanted} to be converted, got {value}")
    kernel, stride = _square("kernel_size", module.kernel_size), _square("stride", module.stride)
    if any(size % stride for size in shape[1:]):
        raise BronetError(f"stride {stride} of a Conv2d must divide the image to be converted, got {shape[1:]}")
    taps = 1 if kernel == stride else kernel  # a patch is what the pixel unshuffle makes channels of
    c_in, c_out = module.in_channels, module.out_channels
    made: list[LipschitzLayer]
    if taps == 1 and kind == "bro":
        # The same matrix at every frequency: a dense layer on the channels, without a transform.
        made = [PixelUnshuffle(stride), BROLinear(c_in * stride**2, c_out)]
    else:
        conv = create_convolution(kind, c_in, c_out, taps, stride=stride, input_size=(shape[1], shape[2]))
        if isinstance(conv, BROConv2d):
            _mix_channels(conv)
        made = [conv]
    return made if module.bias is None else [*made, Bias(c_out)]


def _mix_channels(conv: BROConv2d) -> None:
    """Start at a random orthonormal V at the middle tap.

    At the identity, its own start, a layer with fewer outputs than inputs drops all but the first inputs, and a network
    that widens its images before it narrows them can be zero.
    """
    middle = conv.kernel_size // 2
    nn.init.zeros_(conv.weight)
    nn.init.orthogonal_(conv.weight.data[:, :, middle, middle])


def _linear(module: nn.Module, shape: Shape, kind: str) -> list[LipschitzLayer]:
    assert isinstance(module, nn.Linear)
    _require_vector(shape)
    layer = BROLinear(module.in_features, module.out_features)
    return [layer] if module.bias is None else [layer, Bias(module.out_features)]


def _head(step: Step, shape: Shape) -> LastLayerNormalized:
    assert isinstance(step.module, nn.Linear)
    try:
        _require_vector(shape)
    except BronetError as error:
        raise BronetError(f"{step.path}: {error}") from None
    output_shape(step, shape)
    return LastLayerNormalized(step.module.in_features, step.module.out_features)


def _require_vector(shape: Shape) -> None:
    if len(shape) != 1:
        raise BronetError(f"a Linear must follow a Flatten to be converted, got activations of shape {shape}")


def _activation(module: nn.Module, shape: Shape, kind: str) -> list[LipschitzLayer]:
    if shape[0] % 2:
        raise BronetError(
            f"an activation must have an even number of channels, which MaxMin pairs, got {shape[0]}; "
            f"make the layer before it {shape[0] + 1} wide"
        )
    return [MaxMin()]


def _batch_norm(module: nn.Module, shape: Shape, kind: str) -> list[LipschitzLayer]:
    return [Centring(shape[0])]


def _pool(module: nn.Module, shape: Shape, kind: str) -> list[LipschitzLayer]:
    assert isinstance(module, (nn.MaxPool2d, nn.AvgPool2d))
    window, stride = _square("kernel_size", module.kernel_size), _square("stride", module.stride)
    if window != stride or _square("padding", module.padding) or module.ceil_mode:
        raise BronetError(
            "windows of a pool must not overlap, be padded or be cut to be converted, "
            f"got kernel_size {window}, stride {stride}, padding {module.padding}, ceil_mode {module.ceil_mode}"
        )
    return [MaxPool(window) if isinstance(module, nn.MaxPool2d) else ScaledMeanPool(window)]


def _adaptive_pool(module: nn.Module, shape: Shape, kind: str) -> list[LipschitzLayer]:
    assert isinstance(module, (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d))
    wanted = output_shape(Step("", module), shape)
    windows = {shape[1] / wanted[1], shape[2] / wanted[2]}
    window = next(iter(windows))
    if len(windows) > 1 or window != int(window):
        raise BronetError(f"windows of a pool must be square and whole to be converted, got {shape} to {wanted}")
    if window == 1:
        return []
    is_max = isinstance(module, nn.AdaptiveMaxPool2d)
    return [MaxPool(int(window)) if is_max else ScaledMeanPool(int(window))]


def _flatten(module: nn.Module, shape: Shape, kind: str) -> list[LipschitzLayer]:
    assert isinstance(module, nn.Flatten)
    if (module.start_dim, module.end_dim) != (1, -1):
        raise BronetError(f"Flatten must start at 1 and end at -1, got {module.start_dim} and {module.end_dim}")
    return [Flatten()] if len(shape) > 1 else []


def _unshuffle(module: nn.Module, shape: Shape, kind: str) -> list[LipschitzLayer]:
    assert isinstance(module, nn.PixelUnshuffle)
    return [PixelUnshuffle(module.downscale_factor)]


def _square(name: str, value: int | str | tuple[int, ...]) -> int:
    """Return the common entry of a size along both axes."""
    sizes = {value} if isinstance(value, int) else set(value)
    size = sizes.pop()
    if sizes or not isinstance(size, int):
        raise BronetError(f"{name} must be the same along both axes to be converted, got {value}")
    return size


_RULES: dict[type[nn.Module], Rule] = {
    nn.Conv2d: _convolution,
    nn.Linear: _linear,
    nn.MaxPool2d: _pool,
    nn.AvgPool2d: _pool,
    nn.AdaptiveAvgPool2d: _adaptive_pool,
    nn.AdaptiveMaxPool2d: _adaptive_pool,
    nn.Flatten: _flatten,
    nn.PixelUnshuffle: _unshuffle,
    **dict.fromkeys(_ACTIVATIONS, _activation),
    **dict.fromkeys(_BATCH_NORMS, _batch_norm),
}
