"""What a model's forward does, by torch.fx: a trace whose operations know their line of the user's code.

Lipschitz layers and blocks are single operations, all other modules are followed, torch's own too. Where images run
along, sizes are numbers, on which a forward may decide. A trace sees neither hooks, replaced methods and torch modes
(`copy_of` refuses them) nor values that are changed in place and used again, which are refused on the way.
"""

import copy
import linecache
import operator
import sys
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg
from torch.nn.modules import module as torch_module
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.utils.parametrize import ParametrizationList
from torch.optim.swa_utils import AveragedModel
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from bronet.errors import BronetError
from bronet.graph.operations import BatchSize, method_of
from bronet.layers.activation import Block
from bronet.layers.base import LipschitzLayer
from bronet.layers.convolution import Convolution

_WRAPPERS = (DataParallel, DistributedDataParallel, AveragedModel)
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_CLOSED = (nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
_HERE = str(Path(__file__).parent)
_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(jaxtyping.__file__).parent), "<eval_with_key", "<frozen")


class UnreadableError(BronetError):
    """A model whose forward cannot be known: hooks, replaced methods, control that depends on activations."""


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model that torch.compile, data parallelism or an average of weights has wrapped, or the model."""
    if not isinstance(model, nn.Module):
        raise BronetError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    inner = getattr(model, "_orig_mod", model)  # of torch.compile, whose class is slow to import
    if isinstance(inner, _WRAPPERS):
        inner = inner.module
    return inner if inner is model else unwrapped(inner)


def _require_faithful(module: nn.Module) -> None:
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
    """Whether a forward was defined anew below the class whose proof it inherits, that of a block below its parts'."""

    def place(*names: str) -> int:
        return next(n for n, above in enumerate(kind.__mro__) if any(name in vars(above) for name in names))

    kind = type(module)
    if isinstance(module, Block) and kind.forward is not Block.forward:
        return True
    if isinstance(module, Convolution) and place("convolve") < place("proved_convolve", "proved"):
        return True
    return isinstance(module, LipschitzLayer) and place("forward") < place("proved")


def copy_of(model: nn.Module, *, double: bool = False) -> nn.Module:
    """Return a copy of a model in evaluation mode, in float64 if wanted, with a module around a single layer.

    Raises where a trace would not show what the model does.
    """
    _require_faithful(model)
    try:
        twin = copy.deepcopy(model).eval()
    except (RuntimeError, TypeError) as error:
        name = type(model).__name__
        raise UnreadableError(f"{name} must be a model that can be copied, but: {first_line(error)}") from None
    twin = twin.double() if double else twin
    return nn.Sequential(OrderedDict([(type(twin).__name__, twin)])) if is_single(twin) else twin


Run = Callable[[fx.Node, nn.Module, Tensor], Tensor]


class _Value(fx.Proxy):
    """What stands for a value in a forward that is followed; its sizes are numbers where images run along."""

    def __getattr__(self, name: str) -> Any:
        value = self.node.meta.get("value")
        if isinstance(value, Tensor) and name in ("ndim", "dim", "dtype", "device", "is_cuda", "requires_grad"):
            return getattr(value, name)
        if not isinstance(value, Tensor) or name not in ("shape", "size"):
            return super().__getattr__(name)
        first = (BatchSize(value.shape[0]),) if self.node.meta["of_images"] and value.ndim else ()
        sizes = torch.Size((*first, *value.shape[len(first) :]))
        return sizes if name == "shape" else lambda dim=None: sizes if dim is None else sizes[dim]


class _Tracer(fx.Tracer):
    """Records operations, and computes them on images if there are any."""

    def __init__(self, images: Tensor | None, run_layer: Run) -> None:
        super().__init__()
        self.images, self.run_layer, self.is_computing = images, run_layer, False

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        return root_fn, [self.root, self.create_proxy("placeholder", "images", (), {})]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        closed = isinstance(m, _CLOSED) if self.images is not None else is_single(m)
        return closed or isinstance(m, (LipschitzLayer, Block))

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self.is_computing:
            return forward(*args, **kwargs)
        if self.images is not None and isinstance(m, ParametrizationList):
            return self._real(forward)  # a constant
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val if self.is_computing else super().getattr(attr, attr_val, parameter_proxy_cache)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Value(node, self)

    def to_bool(self, obj: fx.Proxy) -> bool:
        if obj.node.meta.get("of_images", True):
            return super().to_bool(obj)
        return bool(obj.node.meta["value"])

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        value = obj.node.meta.get("value")
        return super().iter(obj) if value is None else (obj[i] for i in range(len(value)))  # type: ignore[index]

    def create_node(self, *args: Any, **settings: Any) -> fx.Node:
        node = super().create_node(*args, **settings)
        node.meta["place"] = _users_line()
        if self.images is not None and node.op != "output":
            self._real(lambda: self._compute(node))
        return node

    def _real(self, compute: Callable[[], Any]) -> Any:
        """Compute with tensors: for that long calls are not recorded, and parameters are no symbols."""
        before, self.is_computing = self.is_computing, True
        try:
            return compute()
        finally:
            self.is_computing = before

    def _compute(self, node: fx.Node) -> None:
        inputs = node.all_input_nodes
        node.meta["of_images"] = node.op == "placeholder" or any(source.meta["of_images"] for source in inputs)
        if writer := next((source.meta["writer"] for source in inputs if "writer" in source.meta), None):
            raise UnreadableError(
                f"{where(writer)} must not change a value in place that is used again later; "
                "write it so that it returns a new one"
            )
        value = node.meta["value"] = self._result(node)
        if isinstance(value, Tensor):
            node.meta["version"] = value._version
        if any(is_stale(source) and not source.meta["of_images"] for source in inputs):
            raise UnreadableError(f"{where(node)} must not change a constant; write it without the underscore")
        if any(is_stale(source) for source in inputs):
            for earlier in self.graph.nodes:
                if is_stale(earlier) and earlier is not node:
                    earlier.meta.setdefault("writer", node)

    def _result(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self.images
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self.root)
        target: Any = node.target
        given: Any = map_arg((node.args, node.kwargs), lambda source: source.meta["value"])
        args, settings = given
        try:
            if node.op == "call_module":
                module = self.root.get_submodule(target)
                is_ours = isinstance(module, (LipschitzLayer, Block)) and len(args) == 1 and not settings
                return self.run_layer(node, module, *args) if is_ours else module(*args, **settings)
            return (method_of(target) if node.op == "call_method" else target)(*args, **settings)
        except (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError) as error:
            if not node.meta["of_images"]:
                raise UnreadableError(f"{where(node)} must be a constant, but: {first_line(error)}") from None
            taken = ", ".join(str(tuple(shape)) for shape in shapes_of(node))
            raise BronetError(
                f"{name_of(node)} must take activations of shape {taken}, but it says: {first_line(error)}"
            ) from None


def is_stale(node: fx.Node) -> bool:
    """Whether the value of an operation was changed in place since."""
    value = node.meta.get("value")
    return isinstance(value, Tensor) and value._version != node.meta["version"]


def shapes_of(node: fx.Node) -> list[torch.Size]:
    """Return the shapes of the activations that an operation takes, without the batch."""
    values = [source.meta["value"] for source in node.all_input_nodes if source.meta["of_images"]]
    return [value.shape[1:] for value in values if isinstance(value, Tensor)]


def is_single(module: nn.Module) -> bool:
    """Whether a module is one operation to its user: a Lipschitz layer, a block, one of torch's but no container."""
    own = type(module).__module__.startswith("torch.nn.") and not isinstance(module, _CONTAINERS)
    return own or isinstance(module, (LipschitzLayer, Block))


def traced(
    model: nn.Module, images: Tensor | None = None, run_layer: Run = lambda node, module, x: module(x)
) -> fx.Graph:
    """Return the operations of a model's forward in its present mode, or raise naming the line that cannot be read.

    With images every node has a `value`, and `of_images` says whether it depends on them; `run_layer` computes
    Lipschitz layers. Without, nothing is computed, and torch's own modules are single operations.
    """
    checks_shapes = not jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)  # a symbol has no shape that an annotation could be checked by
    try:
        return _Tracer(images, run_layer).trace(model)
    except BronetError:
        raise
    except Exception as error:  # whatever the model's own code raises when it meets a symbol
        frames = traceback.extract_tb(error.__traceback__)
        lines = [_line(f.filename, f.lineno or 0) for f in frames if not f.filename.startswith((*_LIBRARIES, _HERE))]
        where = f" at {lines[-1]}" if lines else ""
        raise UnreadableError(
            f"forward of {type(model).__name__} must be readable by torch.fx, which says{where}: {first_line(error)}"
        ) from None
    finally:
        jaxtyping.config.update("jaxtyping_disable", not checks_shapes)


def _caller(node: fx.Node) -> tuple[str, type[nn.Module]]:
    """Return path and type of the innermost module whose forward an operation belongs to."""
    return next(reversed((node.meta.get("nn_module_stack") or {}).values()), ("", nn.Sequential))


def kind_of(node: fx.Node) -> str:
    """Return the type of torch's module that an operation is of, or that it is a function."""
    kind = _caller(node)[1]
    is_module = kind.__module__.startswith("torch.nn.") and not issubclass(kind, _CONTAINERS)
    return kind.__name__.removeprefix("Parametrized") if is_module or node.op == "call_module" else "function"


def name_of(node: fx.Node) -> str:
    """Return the path of a module; of a function its name, behind the path of the module that calls it."""
    path = _caller(node)[0]
    if kind_of(node) != "function":
        return path
    return f"{path or 'forward'}: {getattr(node.target, '__name__', node.target)}"


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
    return "" if file.startswith(_HERE) else _line(file, frame.f_lineno)


def _line(file: str, number: int) -> str:
    text = linecache.getline(file, number).strip()
    return f"{file}:{number}" + (f" ({text})" if text else "")


def first_line(error: Exception) -> str:
    """Return what an error says, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
