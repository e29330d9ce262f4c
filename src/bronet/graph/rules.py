"""Which rule is whose: torch's own modules and functions, with the arguments and weights that a model gives them.

A rule takes what torch's function takes, after the shape of what it gives: an `Input` stands for every activation, all
else is a constant. An operation that no rule knows, or knows only for other arguments, has no bound.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from bronet.graph import activations as act
from bronet.graph import arithmetic, moves, windows
from bronet.graph.operands import Input, NoRuleError, Output, Rule
from bronet.proof.proved_map import ProvedMap

_FLAT = (nn.Flatten, nn.Unflatten)
_DIVIDE = (nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.LocalResponseNorm, nn.RMSNorm)


def _names(*functions: Any, rule: Rule) -> dict[Any, Rule]:
    return dict.fromkeys(functions, rule)


FUNCTIONS: dict[Any, Rule] = {
    F.linear: arithmetic.linear,
    **_names(torch.matmul, operator.matmul, "matmul", torch.mm, "mm", rule=arithmetic.matmul),
    **_names(F.conv2d, torch.conv2d, rule=arithmetic.conv2d),
    **_names(F.relu, torch.relu, "relu", "relu_", torch.relu_, F.relu_, rule=act.exactly(F.relu)),
    F.relu6: act.exactly(F.relu6),
    **_names(torch.abs, "abs", operator.abs, rule=act.exactly(torch.abs)),
    **_names(F.tanh, torch.tanh, "tanh", "tanh_", rule=act.by_slope(*act.SLOPES[nn.Tanh])),
    **_names(F.sigmoid, torch.sigmoid, "sigmoid", "sigmoid_", rule=act.by_slope(*act.SLOPES[nn.Sigmoid])),
    F.gelu: act.gelu,
    F.silu: act.by_slope(*act.SLOPES[nn.SiLU]),
    F.mish: act.by_slope(*act.SLOPES[nn.Mish]),
    F.selu: act.by_slope(*act.SLOPES[nn.SELU]),
    F.logsigmoid: act.by_slope(*act.SLOPES[nn.LogSigmoid]),
    F.leaky_relu: act.leaky,
    **_names(F.prelu, torch.prelu, rule=act.prelu),
    F.elu: act.elu,
    F.celu: act.celu,
    F.hardtanh: act.hardtanh,
    **_names(torch.clamp, "clamp", "clamp_", torch.clip, "clip", rule=act.clamp),
    F.hardswish: act.hardswish,
    F.softplus: act.softplus,
    F.batch_norm: arithmetic.batch_norm,
    **_names(operator.add, operator.iadd, torch.add, "add", "add_", rule=arithmetic.add),
    **_names(operator.sub, operator.isub, torch.sub, torch.subtract, "sub", "sub_", rule=arithmetic.subtract),
    **_names(operator.mul, operator.imul, torch.mul, torch.multiply, "mul", "mul_", rule=arithmetic.multiply),
    **_names(operator.truediv, operator.itruediv, torch.div, torch.divide, "div", "div_", rule=arithmetic.divide),
    **_names(operator.neg, torch.neg, "neg", rule=arithmetic.negative),
    F.avg_pool2d: windows.avg_pool2d,
    F.adaptive_avg_pool2d: windows.adaptive_avg_pool2d,
    **_names(F.max_pool2d, torch.max_pool2d, rule=windows.max_pool2d),
    F.adaptive_max_pool2d: windows.adaptive_max_pool2d,
    F.interpolate: windows.interpolate,
    **_names(torch.mean, "mean", rule=arithmetic.mean),
    **_names(torch.sum, "sum", rule=arithmetic.total),
    **_names(torch.amax, "amax", rule=arithmetic.amax),
    torch.linalg.vector_norm: arithmetic.vector_norm,
    **_names(torch.maximum, "maximum", rule=arithmetic.compared(torch.maximum)),
    **_names(torch.minimum, "minimum", rule=arithmetic.compared(torch.minimum)),
    **_names("contiguous", "clone", torch.clone, "detach", rule=moves.kept),
    **_names("to", "float", "double", "type_as", rule=moves.converted),
    **_names(F.dropout, F.dropout1d, F.dropout2d, F.alpha_dropout, rule=moves.dropout),
    **_names("view", "reshape", torch.reshape, rule=moves.reshaped),
    **_names(torch.flatten, "flatten", rule=moves.flatten),
    **_names(torch.permute, "permute", rule=moves.permute),
    **_names(torch.transpose, "transpose", rule=moves.transpose),
    **_names(torch.flip, "flip", rule=moves.flip),
    **_names(torch.narrow, "narrow", rule=moves.narrow),
    **_names(torch.roll, "roll", rule=moves.roll),
    "expand": moves.expand,
    **_names(torch.squeeze, "squeeze", torch.unsqueeze, "unsqueeze", torch.unflatten, "unflatten", rule=moves.by_shape),
    F.pad: moves.pad,
    F.pixel_shuffle: moves.moving(F.pixel_shuffle),
    F.pixel_unshuffle: moves.moving(F.pixel_unshuffle),
    F.channel_shuffle: moves.moving(F.channel_shuffle),
    **_names(torch.cat, torch.concat, rule=moves.cat),
    torch.stack: moves.stack,
    operator.getitem: moves.item,
}


def targets_of(*rules: Rule) -> frozenset[Any]:
    """Return the functions and methods that have one of these rules."""
    return frozenset(target for target, rule in FUNCTIONS.items() if rule in rules)


def _module(rule: Rule, *attributes: str) -> Callable[[nn.Module, Output, Input], ProvedMap]:
    """Return how a module's map follows from a rule: its attributes are the arguments of the same names."""
    return lambda module, out, x: rule(out, x, **{name: getattr(module, name) for name in attributes})


def _convolution_module(module: nn.Module, out: Output, x: Input) -> ProvedMap:
    assert isinstance(module, nn.Conv2d)
    if module.padding_mode != "zeros":
        raise NoRuleError("only zeros around images are bounded")
    m = module
    return arithmetic.conv2d(out, x, m.weight, m.bias, m.stride, m.padding, m.dilation, m.groups)


def _batch_norm_module(module: nn.Module, out: Output, x: Input) -> ProvedMap:
    assert isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d))
    m = module
    return arithmetic.batch_norm(out, x, m.running_mean, m.running_var, m.weight, m.bias, m.training, eps=m.eps)


def _flat_module(module: nn.Module, out: Output, x: Input) -> ProvedMap:
    start = module.start_dim if isinstance(module, nn.Flatten) else getattr(module, "dim", 0)
    if start == 0:
        raise NoRuleError("the images of a batch must stay apart: the first dimension must stay")
    return moves.by_shape(out, x)


def _dropout_module(module: nn.Module, out: Output, x: Input) -> ProvedMap:
    return moves.dropout(out, x, training=module.training)


def _pad_module(module: nn.Module, out: Output, x: Input) -> ProvedMap:
    sides, value, name = getattr(module, "padding", ()), getattr(module, "value", 0.0), type(module).__name__
    mode = "reflect" if "Reflection" in name else "replicate" if "Replication" in name else "constant"
    return moves.pad(out, x, sides, mode, value)


def _divides(module: nn.Module, out: Output, x: Input) -> ProvedMap:
    raise NoRuleError("divides by a deviation of its own input, which may be as small as it likes")


MODULES: dict[type[nn.Module], Callable[[nn.Module, Output, Input], ProvedMap]] = {
    nn.Identity: _module(moves.kept),
    nn.Linear: _module(arithmetic.linear, "weight", "bias"),
    nn.Conv2d: _convolution_module,
    nn.ReLU: _module(FUNCTIONS[F.relu]),
    nn.ReLU6: _module(FUNCTIONS[F.relu6]),
    **{kind: _module(act.by_slope(*known)) for kind, known in act.SLOPES.items() if kind is not nn.GELU},
    nn.GELU: _module(act.gelu, "approximate"),
    nn.LeakyReLU: _module(act.leaky, "negative_slope"),
    nn.PReLU: _module(act.prelu, "weight"),
    nn.ELU: _module(act.elu, "alpha"),
    nn.CELU: _module(act.celu, "alpha"),
    nn.Hardtanh: _module(act.hardtanh, "min_val", "max_val"),
    nn.Hardswish: _module(act.hardswish),
    nn.Softplus: _module(act.softplus, "beta", "threshold"),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), _batch_norm_module),
    nn.AvgPool2d: _module(
        windows.avg_pool2d, "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"
    ),
    nn.AdaptiveAvgPool2d: _module(windows.adaptive_avg_pool2d, "output_size"),
    nn.MaxPool2d: _module(windows.max_pool2d, "kernel_size", "stride", "padding", "dilation", "ceil_mode"),
    nn.AdaptiveMaxPool2d: _module(windows.adaptive_max_pool2d, "output_size"),
    nn.Upsample: _module(windows.interpolate, "size", "scale_factor", "mode", "align_corners"),
    nn.PixelShuffle: lambda module, out, x: FUNCTIONS[F.pixel_shuffle](out, x, module.upscale_factor),
    nn.PixelUnshuffle: lambda module, out, x: FUNCTIONS[F.pixel_unshuffle](out, x, module.downscale_factor),
    nn.ChannelShuffle: lambda module, out, x: FUNCTIONS[F.channel_shuffle](out, x, module.groups),
    **dict.fromkeys(_FLAT, _flat_module),
    **dict.fromkeys((nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout), _dropout_module),
    **dict.fromkeys((nn.ZeroPad2d, nn.ConstantPad2d, nn.ReflectionPad2d, nn.ReplicationPad2d), _pad_module),
    **dict.fromkeys(_DIVIDE, _divides),
}
