"""What a model's forward does, by torch.fx: a trace whose operations know their line of the user's code, and a walk.

Lipschitz layers, blocks and torch's own modules are single operations; all other modules are followed. A trace sees
neither hooks nor replaced methods, nor values that are changed in place and used again: such models are refused.
"""

import inspect
import linecache
import operator
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jaxtyping
import torch
from torch import fx, nn
from torch.nn.modules import module as torch_module
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.utils.parametrize import type_before_parametrizations
from torch.optim.swa_utils import AveragedModel
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from bronet.errors import BronetError
from bronet.graph import linear
from bronet.layers.activation import Block
from bronet.layers.base import LipschitzLayer
from bronet.layers.convolution import Convolution

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_WRAPPERS = (DataParallel, DistributedDataParallel, AveragedModel)
_HERE = str(Path(__file__).parent)
_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(jaxtyping.__file__).parent), "<eval_with_key", "<frozen")


class UnreadableError(BronetError):
    """A model whose forward cannot be known: hooks, replaced methods, control that depends on activations."""


# Before tracing: is the model's forward what its classes say?


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model that torch.compile, data parallelism or an average of weights has wrapped, or the model."""
    if not isinstance(model, nn.Module):
        raise BronetError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    inner = getattr(model, "_orig_mod", model)  # of torch.compile, whose class is slow to import
    if isinstance(inner, _WRAPPERS):
        inner = inner.module
    return inner if inner is model else unwrapped(inner)


def require_faithful(module: nn.Module) -> None:
    """Raise where a module or a part of it has hooks, a replaced method, or a forward that its proof does not know."""
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        raise UnreadableError("torch's global module hooks must be removed for a proof, which cannot see what they do")
    for mode in (*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()):
        if not isinstance(mode, DeviceContext):
            raise UnreadableError(f"no torch mode must be active while a proof is made, got {type(mode).__name__}")
    for path, part in module.named_modules():
        if part._forward_hooks or part._forward_pre_hooks or _replaces_a_method(part):
            raise UnreadableError(
                f"forward of {path or type(part).__name__} must be its class's own, got one with hooks or replaced; "
                "a certificate could not see what it does"
            )
        if _overrides_forward(part):
            raise UnreadableError(
                f"{type(part).__name__} must define `proved` beside its own forward, got the proof of a class above it"
            )
    devices = {tensor.device for tensor in (*module.parameters(), *module.buffers())}
    if len(devices) > 1:
        raise UnreadableError(f"a model must be on one device to be proved, got {', '.join(sorted(map(str, devices)))}")


def _replaces_a_method(module: nn.Module) -> bool:
    """Whether a method of the class is hidden by an attribute of the instance, or torch's way of calling by another.

    A GraphModule's way of calling is of torch.fx's making.
    """
    kind = type(module)
    hidden = any(callable(getattr(kind, name, None)) for name in vars(module))
    calls = (nn.Module.__call__, nn.Module._call_impl)
    return hidden or (not isinstance(module, fx.GraphModule) and (kind.__call__, kind._call_impl) != calls)


def _overrides_forward(module: nn.Module) -> bool:
    """Whether a Lipschitz layer's forward was defined anew below the class whose proof it inherits."""

    def place(*names: str) -> int:
        return next(n for n, above in enumerate(kind.__mro__) if any(name in vars(above) for name in names))

    kind = type(module)
    if isinstance(module, Convolution) and place("convolve") < place("proved_convolve", "proved"):
        return True
    return isinstance(module, LipschitzLayer) and place("forward") < place("proved")


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put every part of a model into evaluation mode while inside, and back into its own mode after."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training


# The trace.


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_single(m)

    def create_node(self, *args: Any, **settings: Any) -> fx.Node:
        node = super().create_node(*args, **settings)
        node.meta["place"] = _users_line()
        return node


def kind_of(module: nn.Module) -> type[nn.Module]:
    """Return the exact type by which a module is known; of a parametrized one, that which it had before."""
    kind: type[nn.Module] = type_before_parametrizations(module)
    return kind


def is_single(module: nn.Module) -> bool:
    """Whether a module is one operation: a Lipschitz layer, a block, or one of torch's own that is no container."""
    own = kind_of(module).__module__.startswith("torch.nn.") and not isinstance(module, _CONTAINERS)
    return own or isinstance(module, (LipschitzLayer, Block))


def traced(model: nn.Module) -> fx.Graph:
    """Return the operations of a model's forward in its present mode, or raise naming the line that cannot be read."""
    checks_shapes = not jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)  # a symbol has no shape that an annotation could be checked by
    try:
        graph = _Tracer().trace(model)
    except Exception as error:  # whatever the model's own code raises when it meets a symbol
        ours = (*_LIBRARIES, _HERE)
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
        where = f" at {_line(frames[-1].filename, frames[-1].lineno or 0)}" if frames else ""
        raise UnreadableError(
            f"forward of {type(model).__name__} must be readable by torch.fx, which says{where}: {first_line(error)}"
        ) from None
    finally:
        jaxtyping.config.update("jaxtyping_disable", not checks_shapes)
    _require_no_sharing(graph, model)
    return graph


def name_of(node: fx.Node) -> str:
    """Return the path of a module; of a function its name, behind the path of the module that calls it."""
    if node.op == "call_module":
        return str(node.target)
    stack = node.meta.get("nn_module_stack") or {}
    caller = next((str(path) for path, _ in reversed(stack.values())), "") if stack else ""
    own = str(node.target) if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    return f"{caller or 'forward'}: {own}"


def where(node: fx.Node) -> str:
    """Return the name of an operation with its line."""
    place = node.meta.get("place")
    return f"{name_of(node)} at {place}" if place else name_of(node)


def _users_line() -> str:
    """Return the innermost line that is neither torch's nor this file's, with its text; none where this room calls."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((*_LIBRARIES, __file__)):
        frame = frame.f_back
    file = frame.f_code.co_filename
    return "" if file.startswith(_HERE) and not file.endswith("model.py") else _line(file, frame.f_lineno)


def _line(file: str, number: int) -> str:
    text = linecache.getline(file, number).strip()
    return f"{file}:{number}" + (f" ({text})" if text else "")


def first_line(error: Exception) -> str:
    """Return what an error says, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _require_no_sharing(trace: fx.Graph, root: nn.Module) -> None:
    """Raise where an operation changes a value in place that, itself or as a view, is used again later."""
    order = {node: position for position, node in enumerate(trace.nodes)}
    shares: dict[fx.Node, set[fx.Node]] = {}
    for node in trace.nodes:
        shares[node] = {node}
        writes = _is_in_place(node, root)
        # Products and sums certainly give new memory; all else may give a view.
        kind = kind_of(root.get_submodule(str(node.target))) if node.op == "call_module" else node.target
        if writes or not (kind in linear.FUNCTIONS or kind in linear.MODULES or kind in (torch.cat, nn.MaxPool2d)):
            for source in node.all_input_nodes:
                shares[node] |= shares[source]
        if writes:
            target = node.all_input_nodes[0]
            for other in {m for m, group in shares.items() if order[m] < order[node] and group & shares[target]}:
                if any(order[user] > order[node] for user in other.users):
                    raise UnreadableError(
                        f"{where(node)} must not change a value in place that is used again later; "
                        "write it so that it returns a new one"
                    )


def _is_in_place(node: fx.Node, root: nn.Module) -> bool:
    """Whether an operation writes into what it is given."""
    if node.op == "call_module":
        return getattr(root.get_submodule(str(node.target)), "inplace", False) is True
    name = str(getattr(node.target, "__name__", node.target))
    if node.op not in ("call_function", "call_method") or getattr(node.target, "__module__", "") == "_operator":
        return name in _AUGMENTED
    if (name.endswith("_") and not name.endswith("__")) or node.kwargs.get("out") is not None:
        return True
    if node.op == "call_method" or "inplace" in node.kwargs:
        return node.kwargs.get("inplace") is True
    try:
        bound = inspect.signature(node.target).bind(*node.args, **node.kwargs)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return bound.arguments.get("inplace") is True


_AUGMENTED = ("iadd", "isub", "imul", "itruediv", "ifloordiv", "ipow", "imod", "imatmul", "setitem")


# The walk.


class Symbol:
    """What stands for an activation while a forward is followed."""


class Walk(fx.Interpreter):
    """Follows a trace with symbols in place of activations; what depends on no activation is computed.

    Subclasses say what a module (`call_module`) and a function or method (`operation`) make of symbols.
    """

    current: fx.Node

    def __init__(self, model: nn.Module, trace: fx.Graph) -> None:
        super().__init__(model, garbage_collect_values=False, graph=trace)
        self.extra_traceback = False

    def operation(self, call: Callable[..., Any], args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        raise NotImplementedError

    def run_node(self, n: fx.Node) -> Any:
        self.current = n
        return super().run_node(n)

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        given = [*self.args_iter, *args]
        if given:
            return given[0]
        name = type(self.module).__name__
        raise UnreadableError(f"forward of {name} must take one tensor, got also {target} without a default")

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        if not symbols_in((args, kwargs)) and target.endswith("_") and not target.endswith("__"):
            raise UnreadableError(f"{where(self.current)} must not change a constant; write it without the underscore")
        return self.call_function(method_of(target), args, kwargs)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        is_taken_apart = target is operator.getitem and isinstance(args[0], (tuple, list))
        if symbols_in((args, kwargs)) and not is_taken_apart:
            return self.operation(target, args, kwargs)
        try:
            return target(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError) as error:
            raise UnreadableError(f"{where(self.current)} must be a constant, but: {first_line(error)}") from None


def method_of(name: str) -> Callable[..., Any]:
    """Return a method by its name, as a function of what has it."""
    return lambda thing, *args, **settings: getattr(thing, name)(*args, **settings)


def symbols_in(argument: Any) -> list[Any]:
    """Return the symbols in nested tuples, lists, dicts and slices, in their order."""
    if isinstance(argument, dict):
        argument = tuple(argument.values())
    if isinstance(argument, slice):
        argument = (argument.start, argument.stop, argument.step)
    if isinstance(argument, (tuple, list)):
        return [symbol for part in argument for symbol in symbols_in(part)]
    return [argument] if isinstance(argument, Symbol) else []
