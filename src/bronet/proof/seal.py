"""A proved program owns what it computes with: plain numbers and tensors, and no module that somebody could change.

Guaranteed for what a function holds in its closure, its defaults, its bound object and the parts of those. What it
reaches through names of its own file is not looked at; such names should be functions and constants.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from bronet.errors import BronetError

_PLAIN = (str, bytes, int, float, complex, type, torch.dtype, torch.device, type(None))


def require_sealed(apply: Callable[..., Tensor], name: str) -> None:
    """Raise if a proved map's function refers to a module: its hooks and settings could change the program later."""
    module = next((value for value in held_by(apply) if isinstance(value, nn.Module)), None)
    if module is not None:
        raise BronetError(
            f"the proved map of {name} must compute with numbers and tensors of its own, but it refers to a "
            f"{type(module).__name__}; copy what it needs before defining `apply`"
        )


def held_by(function: object) -> Iterator[object]:
    """Yield everything that a function holds on to, directly or through what it holds."""
    waiting, seen = [function], set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, _PLAIN):
            continue
        seen.add(id(value))
        yield value
        waiting += _parts_of(value)


def _parts_of(value: object) -> Iterator[object]:
    if isinstance(value, (Tensor, nn.Module)):
        return
    if isinstance(value, (tuple, list, set, frozenset)):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()
    else:
        yield from (cell.cell_contents for cell in getattr(value, "__closure__", None) or ())
        yield from getattr(value, "__defaults__", None) or ()
        yield from (getattr(value, "__kwdefaults__", None) or {}).values()
        yield from (getattr(value, name, None) for name in ("__self__", "__func__", "__wrapped__", "func"))
        yield from getattr(value, "args", None) or ()
        yield from (getattr(value, "keywords", None) or {}).values()
        yield from (getattr(value, "__dict__", None) or {}).values()
