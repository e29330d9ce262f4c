"""Networks for training and certificates: an ordinary forward that ends with a head, and a row of layers as one."""

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, fx, nn

from bronet.errors import BronetError
from bronet.graph import linear, moves
from bronet.graph.trace import Symbol, Walk, is_single, symbols_in, traced, where
from bronet.layers.activation import Block
from bronet.layers.base import LipschitzLayer
from bronet.layers.execution import prepared
from bronet.layers.head import Head

M = TypeVar("M", bound=nn.Module)


def computes_ahead(forward: Callable[[M, Tensor], Tensor]) -> Callable[[M, Tensor], Tensor]:
    """Wrap the forward of a network: images are checked, and what layers derive from parameters is computed ahead.

    A symbol of torch.fx goes through the forward alone.
    """

    @functools.wraps(forward)
    def wrapped(self: M, images: Tensor) -> Tensor:
        if isinstance(images, fx.Proxy):
            return forward(self, images)
        if not images.is_floating_point():
            raise BronetError(f"images must be floating point, got {images.dtype}; divide uint8 by 255")
        with prepared(self):
            return forward(self, images)

    return wrapped


class CertifiableModel(nn.Module):
    """A network with a constant for its losses: images (b, c, h, w) in [0, 1] to logits (b, k), the head last.

    Subclasses define an ordinary forward. Proofs need no such class: `bronet.prove(model, shape)` takes any module.
    """

    head: Head

    def __init__(self, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.image_shape = image_shape

    @property
    def recordable(self) -> bool:
        """Whether a step with the network can be recorded as a CUDA graph."""
        return all(part.recordable for part in self.modules() if isinstance(part, LipschitzLayer))

    def lipschitz_estimate(self) -> Float[Tensor, ""]:
        """Return the constant before the head as training sees it; differentiable, no bound."""
        like = next(self.head.parameters())
        one = torch.ones((), device=like.device, dtype=like.dtype)  # a plain tensor, where parameters are sharded too
        result = _Estimate(self, _trace_of(self)).run(_Constant(one))
        if not isinstance(result, _Constant) or not result.is_of_head:
            raise BronetError(f"the forward of {type(self).__name__} must end with its head to be trained")
        return result.value

    def gap_lipschitz(self) -> Float[Tensor, "k k"]:
        """Return the Lipschitz constants of f_t - f_j as training sees them; differentiable, no bound."""
        return self.lipschitz_estimate() * self.head.gaps()

    def update_estimates(self, steps: int) -> None:
        """Take power-iteration steps in every layer that is only Lipschitz-regularised."""
        for unit in dict.fromkeys(units_of(self)):
            unit.update_estimate(steps)


class Chain(CertifiableModel):
    """Layers that are applied one after the other, by name, and a head; the names become parameter names.

    Guaranteed: whatever the layers prove, as for every other network. The first layer sees pixels in [0, 1]; radii are
    in that space.
    """

    def __init__(
        self, image_shape: tuple[int, int, int], layers: Mapping[str, LipschitzLayer | Block], head: Head
    ) -> None:
        super().__init__(image_shape)
        for name, layer in layers.items():
            if not isinstance(layer, (LipschitzLayer, Block)):
                raise BronetError(f"layer {name} of a Chain must be a Lipschitz layer, got {type(layer).__name__}")
        self.layers = nn.Sequential(OrderedDict(layers))
        self.head = head

    @computes_ahead
    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        logits: Tensor = self.head(self.layers(images))
        return logits


Unit = Block | LipschitzLayer


def units_of(module: nn.Module) -> Iterator[Unit]:
    """Yield a model's blocks, and its Lipschitz layers outside of blocks, in the order of registration."""
    if isinstance(module, (Block, LipschitzLayer)):
        yield module
        return
    for part in module.children():
        yield from units_of(part)


def layers_of(module: nn.Module, path: str = "") -> Iterator[tuple[str, LipschitzLayer]]:
    """Yield every Lipschitz layer that is no part of another, with its path, in the order of registration."""
    if isinstance(module, LipschitzLayer):
        yield path, module
        return
    for name, part in module.named_children():
        yield from layers_of(part, f"{path}.{name}" if path else name)


class _Constant(Symbol):
    """An activation's constant as training sees it; the head's is that of what it is given."""

    def __init__(self, value: Tensor, *, is_of_head: bool = False) -> None:
        self.value, self.is_of_head = value, is_of_head


class _Estimate(Walk):
    """The walk of the trace that multiplies constants; a layer that is used twice counts twice."""

    module: CertifiableModel

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        module, (x,) = self.module.get_submodule(target), symbols_in((args, kwargs))
        if module is self.module.head:
            return _Constant(x.value, is_of_head=True)
        if isinstance(module, (Block, LipschitzLayer)):
            return _Constant(x.value * module.lipschitz_estimate())
        if is_single(module) and not any(True for _ in module.parameters()):
            return x
        raise BronetError(
            f"{target} must be a Lipschitz layer to be trained with its constant, got {type(module).__name__}"
        )

    def operation(self, call: Callable[..., Any], args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        given, target = symbols_in((args, settings)), self.current.target
        rule = linear.FUNCTIONS.get(target)
        if rule in (linear.add, linear.subtract):
            return _Constant(torch.stack([x.value for x in given]).sum()) if len(given) > 1 else given[0]
        if rule in (linear.multiply, linear.divide) and len(given) == 1:
            x, number = given[0].value, torch.as_tensor(next(a for a in args if not isinstance(a, Symbol))).abs()
            return _Constant(x * number.max() if rule is linear.multiply else x / number.min())
        if target in (torch.cat, torch.concat, torch.stack):
            return _Constant(torch.stack([x.value for x in given]).square().sum().sqrt())
        if target in moves.FUNCTIONS or target in _KEEPING:
            return given[0]
        raise BronetError(f"{where(self.current)} has no constant for training; see bronet.check")


_KEEPING = (*moves.PARTS, "size", getattr, "relu", torch.relu, nn.functional.relu)
_TRACES: WeakKeyDictionary[nn.Module, tuple[object, fx.Graph]] = WeakKeyDictionary()


def _trace_of(model: nn.Module) -> fx.Graph:
    """Return the trace of a model, made anew when a part of it is another."""
    parts = tuple((path, id(part)) for path, part in model.named_modules())
    known = _TRACES.get(model)
    if known is None or known[0] != parts:
        known = _TRACES[model] = (parts, traced(model))
    return known[1]
