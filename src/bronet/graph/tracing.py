"""The operations of a model's forward by torch.fx, each with the line of the user's code that it is from.

Lipschitz layers, blocks and torch's own modules are single operations; all other modules are followed.
"""

import inspect
import linecache
import sys
import traceback
from pathlib import Path
from typing import Any

import jaxtyping
import torch
from torch import fx, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from bronet.graph import arithmetic, moves
from bronet.graph.faithful import UnreadableError
from bronet.graph.rules import targets_of
from bronet.layers.activation import Block
from bronet.layers.base import LipschitzLayer

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_HERE = str(Path(__file__).parent)
_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(jaxtyping.__file__).parent), "<eval_with_key", "<frozen")


class Tracer(fx.Tracer):
    """Symbolic tracing in which Lipschitz layers are single operations, and all know the line they are from."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_single(m) or isinstance(m, Block)

    def create_node(self, *args: Any, **settings: Any) -> fx.Node:
        node = super().create_node(*args, **settings)
        node.meta["place"] = _users_line()
        return node


def kind_of(module: nn.Module) -> type[nn.Module]:
    """Return the exact type by which a module is known; of a parametrized one, that which it had before."""
    kind: type[nn.Module] = type_before_parametrizations(module)
    return kind


def is_single(module: nn.Module) -> bool:
    """Whether a module is one operation: a Lipschitz layer, or one of torch's own that is no container."""
    own = kind_of(module).__module__.startswith("torch.nn.") and not isinstance(module, _CONTAINERS)
    return own or isinstance(module, LipschitzLayer)


def traced(model: nn.Module) -> fx.Graph:
    """Return the operations of a model's forward in its present mode, or raise naming the line that cannot be read."""
    checks_shapes = not jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)  # a symbol has no shape that an annotation could be checked by
    try:
        graph = Tracer().trace(model)
    except Exception as error:  # whatever the model's own code raises when it meets a symbol
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not _is_ours(f.filename)]
        where = f" at {_line(frames[-1].filename, frames[-1].lineno or 0)}" if frames else ""
        raise UnreadableError(
            f"forward of {type(model).__name__} must be readable by torch.fx, which says{where}: {reason}"
        ) from None
    finally:
        jaxtyping.config.update("jaxtyping_disable", not checks_shapes)
    return graph


def require_no_sharing(trace: fx.Graph, root: nn.Module) -> None:
    """Raise where an operation changes a value in place that, itself or as a view, is used again later."""
    order = {node: position for position, node in enumerate(trace.nodes)}
    shares: dict[fx.Node, set[fx.Node]] = {}
    for node in trace.nodes:
        shares[node] = {node}
        if not _is_fresh(node, root):
            for source in node.all_input_nodes:
                shares[node] |= shares[source]
        if _is_in_place(node, root):
            target = node.all_input_nodes[0]
            for other in {m for m, group in shares.items() if order[m] < order[node] and group & shares[target]}:
                if any(order[user] > order[node] for user in other.users):
                    name, place = str(getattr(node.target, "__name__", node.target)), node.meta.get("place", "")
                    raise UnreadableError(
                        f"{name} at {place} must not change a value in place that is used again later; "
                        "write it so that it returns a new one"
                    )


def _is_fresh(node: fx.Node, root: nn.Module) -> bool:
    """Whether an operation certainly gives new memory: products, pools and arithmetic do; all else may give a view."""
    if node.op == "call_module":
        return kind_of(root.get_submodule(str(node.target))) in _FRESH_MODULES
    return node.target in _FRESH and not _is_in_place(node, root)


_FRESH = targets_of(
    arithmetic.add,
    arithmetic.subtract,
    arithmetic.multiply,
    arithmetic.divide,
    arithmetic.linear,
    arithmetic.conv2d,
    arithmetic.batch_norm,
    moves.cat,
)
_FRESH_MODULES = {nn.Conv2d, nn.Linear, nn.BatchNorm1d, nn.BatchNorm2d, nn.AvgPool2d, nn.MaxPool2d}


def _is_in_place(node: fx.Node, root: nn.Module) -> bool:  # noqa: PLR0911 -- one for each kind
    """Whether an operation writes into what it is given."""
    if node.op == "call_module":
        return getattr(root.get_submodule(str(node.target)), "inplace", False) is True
    if node.op not in ("call_function", "call_method"):
        return False
    name = str(getattr(node.target, "__name__", node.target))
    if getattr(node.target, "__module__", "") == "_operator":
        return name in _AUGMENTED
    if (name.endswith("_") and not name.endswith("__")) or node.kwargs.get("out") is not None:
        return True
    if node.op == "call_method" or node.kwargs.get("inplace") is True:
        return node.op == "call_function"
    try:
        bound = inspect.signature(node.target).bind(*node.args, **node.kwargs)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return bound.arguments.get("inplace") is True


_AUGMENTED = ("iadd", "isub", "imul", "itruediv", "ifloordiv", "ipow", "imod", "imatmul", "setitem")


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


def _is_ours(file: str) -> bool:
    return file.startswith((*_LIBRARIES, _HERE))


def first_line(error: Exception) -> str:
    """Return what an error says, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
