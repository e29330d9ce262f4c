"""A torch model read as a chain of steps: modules, and functions as the modules that they stand for.

Read by torch.fx from the forward itself, not from the order of attributes. A forward with branches, residuals or
several inputs is refused: the product of its layers' constants would bound nothing.
"""

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from bronet.errors import BronetError
from bronet.graph.faithful import require_faithful, require_module
from bronet.graph.tracing import is_single, kind_of, traced
from bronet.layers import Block


@dataclass(frozen=True)
class Step:
    """A module of the chain with its path in the model; a function has that of the module whose forward calls it."""

    path: str
    module: nn.Module

    @property
    def kind(self) -> str:
        """The module's type, for people."""
        return kind_of(self.module).__name__


# Functions and tensor methods, by what stands for them; arguments after the tensor are those of the module.
_FUNCTIONS: dict[Callable[..., Any] | str, Callable[..., nn.Module]] = {
    **dict.fromkeys((F.relu, torch.relu, "relu", "relu_"), nn.ReLU),
    **dict.fromkeys((F.tanh, torch.tanh, "tanh"), nn.Tanh),
    **dict.fromkeys((F.sigmoid, torch.sigmoid, "sigmoid"), nn.Sigmoid),
    F.gelu: nn.GELU,
    F.silu: nn.SiLU,
    F.elu: nn.ELU,
    F.leaky_relu: nn.LeakyReLU,
    F.max_pool2d: nn.MaxPool2d,
    F.avg_pool2d: nn.AvgPool2d,
    F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
    F.adaptive_max_pool2d: nn.AdaptiveMaxPool2d,
    F.pixel_unshuffle: nn.PixelUnshuffle,
    **dict.fromkeys((torch.flatten, "flatten"), nn.Flatten),
}
_DROPOUTS = (F.dropout, F.dropout2d)
_FLATTENING = ("view", "reshape")


def read_steps(model: nn.Module) -> list[Step]:
    """Return the steps of a model's forward in order, or raise naming the place where it is no chain."""
    require_module(model)
    require_faithful(model)
    if is_single(model):
        return [Step(kind_of(model).__name__, model)]
    graph = traced(model)
    steps: list[Step] = []
    current, sizes = None, set[fx.Node]()
    for node in graph.nodes:
        if _is_size(node, sizes):
            sizes.add(node)
        elif node.op == "placeholder":
            if current is not None:
                raise BronetError(f"forward of {type(model).__name__} must take one tensor, got also {node.target}")
            current = node
        else:
            inputs = [source for source in node.all_input_nodes if source not in sizes]
            is_pair = node.op == "output" and not isinstance(node.args[0], fx.Node)
            if node.op == "get_attr" or inputs != [current] or is_pair:
                raise BronetError(
                    f"{_place(node)} must take only the output of the step before it: a residual or branching forward "
                    "is no chain, and no product of constants bounds it"
                )
            if node.op == "call_module":
                steps += _expanded(str(node.target), model.get_submodule(str(node.target)))
            elif node.op != "output":
                steps.append(_function_step(node, sizes))
            current = node
    return steps


def _expanded(path: str, module: nn.Module) -> Iterator[Step]:
    """Yield the module, or the parts of a Block."""
    if isinstance(module, Block):
        for name, part in module.named_children():
            yield Step(f"{path}.{name}", part)
    else:
        yield Step(path, module)


def _is_size(node: fx.Node, sizes: set[fx.Node]) -> bool:
    """Whether a node is a size or a shape, or a part of one: no step of the chain."""
    if node.op == "call_method":
        return node.target in ("size", "dim")
    if node.op != "call_function":
        return False
    is_shape = node.target is getattr and node.args[1] == "shape"
    return is_shape or (node.target is operator.getitem and node.args[0] in sizes)


def _place(node: fx.Node) -> str:
    """Return where a node is, for people: a module's path, or the function and the module that calls it."""
    if node.op == "call_module":
        return str(node.target)
    return f"{_caller(node) or 'forward'}: {_name(node)}"


def _caller(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    return next((str(path) for path, _ in reversed(stack.values())), "") if stack else ""


def _name(node: fx.Node) -> str:
    return str(node.target) if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def _function_step(node: fx.Node, sizes: set[fx.Node]) -> Step:
    """Return the module that a function or method stands for."""
    arguments = node.args[1:]
    if node.target in _FLATTENING and len(arguments) == 2 and arguments[0] in sizes and arguments[1] == -1:
        return Step(_place(node), nn.Flatten())
    if node.target in _DROPOUTS:
        return Step(_place(node), _dropout(node))
    if node.target not in _FUNCTIONS:
        raise BronetError(f"{_place(node)} must be a function with a known constant; write it as a torch.nn module")
    options = {key: value for key, value in node.kwargs.items() if key not in ("input", "inplace")}
    try:
        return Step(_place(node), _FUNCTIONS[node.target](*arguments, **options))
    except TypeError as error:
        raise BronetError(f"{_place(node)} must have the arguments of a torch.nn module, but: {error}") from None


def _dropout(node: fx.Node) -> nn.Module:
    """Return the module of a dropout function, in the mode that the call names: one that names none drops always."""
    _, *options = node.args  # p and training, where they are given by place
    drops = options[1] if len(options) > 1 else node.kwargs.get("training", True)
    return nn.Dropout().train(bool(drops))


@torch.no_grad()
def output_shape(step: Step, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of one image's activations behind a step, by running it in evaluation mode on zeros."""
    parameter = next(step.module.parameters(), torch.empty(0))
    zeros = torch.zeros(1, *shape, device=parameter.device, dtype=parameter.dtype)
    was_training = step.module.training
    step.module.eval()
    try:
        result = step.module(zeros)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BronetError(f"{step.path} must take activations of shape {shape}, but it says: {reason}") from None
    finally:
        step.module.train(was_training)
    if not isinstance(result, Tensor):
        raise BronetError(f"{step.path} ({step.kind}) must return one tensor, got {type(result).__name__}")
    return tuple(result.shape[1:])
