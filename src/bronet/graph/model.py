"""Networks for training and certificates: an ordinary forward that ends with a head, and a row of layers as one."""

import functools
import importlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from bronet.errors import BronetError
from bronet.graph import linear, moves
from bronet.graph.operations import RULES
from bronet.graph.trace import first_line, is_single, traced, where
from bronet.layers.activation import Block
from bronet.layers.base import LipschitzLayer
from bronet.layers.compose import Parallel, Residual
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

    Subclasses have `layers` or an ordinary forward of their own. Proofs need no such class: `bronet.prove` takes any
    module.
    """

    layers: nn.Module
    head: Head

    def __init__(self, image_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.image_shape = image_shape
        self.classes: tuple[str, ...] = ()
        """Names of the classes in the order of the logits, where they are known."""

    @computes_ahead
    def forward(self, images: Float[Tensor, "b ..."]) -> Float[Tensor, "b k"]:
        logits: Tensor = self.head(self.layers(images))
        return logits

    def __repr__(self) -> str:
        count = sum(parameter.numel() for parameter in self.parameters())
        return f"{type(self).__name__}({' x '.join(map(str, self.image_shape))} pixels, {count:,} parameters)"

    def lipschitz_estimate(self) -> Float[Tensor, ""]:
        """Return the constant before the head as training sees it; differentiable, no bound."""
        like = next(self.head.parameters())
        one = torch.ones((), device=like.device, dtype=like.dtype)  # a plain tensor, where parameters are sharded too
        return _Estimate(self, _trace_of(self)).of_head(one)

    def gap_lipschitz(self) -> Float[Tensor, "k k"]:
        """Return the Lipschitz constants of f_t - f_j as training sees them; differentiable, no bound."""
        return self.lipschitz_estimate() * self.head.gaps()

    def save_pretrained(self, folder: Path | str) -> Path:
        """Write the network as a folder with config.json and model.safetensors; see `bronet.save_pretrained`."""
        return Path(_pretrained().save_pretrained(self, folder))

    def push_to_hub(self, repo_id: str, *, private: bool = False) -> str:
        """Upload the network to the Hugging Face hub; see `bronet.push_to_hub`."""
        return str(_pretrained().push_to_hub(self, repo_id, private=private))

    @classmethod
    def from_pretrained(cls, what: Path | str) -> "CertifiableModel":
        """Return the network of a name, a folder or "hf:owner/name"; see `bronet.load_pretrained`."""
        model: CertifiableModel = _pretrained().load_pretrained(what)
        if not isinstance(model, cls):
            raise BronetError(f"{what} must be a {cls.__name__}, got a {type(model).__name__}")
        return model

    def update_estimates(self, steps: int) -> None:
        """Take power-iteration steps in every layer that is only Lipschitz-regularised."""
        for unit in dict.fromkeys(units_of(self)):
            unit.update_estimate(steps)


def _pretrained() -> Any:
    """Return the room of pretrained networks, of which this one knows nothing until it is asked."""
    return importlib.import_module("bronet.pretrained")


def recordable(model: nn.Module) -> bool:
    """Whether a step with a network can be recorded as a CUDA graph, as far as its layers say."""
    return all(part.recordable for part in model.modules() if isinstance(part, LipschitzLayer))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, all parts of a network are in evaluation mode; afterwards each is in the mode that it had."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, was_training in modes:
            part.training = was_training


class Chain(CertifiableModel):
    """Layers that are applied one after the other, the last of them a head.

    Each of `parts` is a layer, a list of layers, an `nn.Sequential`, or a dictionary from names to layers; names become
    parameter names, and layers without one are numbered. A black image goes through at once, so that layers that do not
    fit together are named here.

    Guaranteed: whatever the layers prove, as for every other network. The first layer sees pixels in [0, 1]; radii are
    in that space.
    """

    def __init__(self, image_shape: tuple[int, ...], *parts: "ChainParts") -> None:
        super().__init__(image_shape)
        layers = dict[str, nn.Module]()
        for name, layer in _named(parts):
            layers[name if name and name not in layers else str(len(layers))] = layer
        name, head = layers.popitem() if layers else ("", None)
        if not isinstance(head, Head):
            raise BronetError(f"the last part of a Chain must be a head, got {type(head).__name__}")
        for name, layer in layers.items():
            if not isinstance(layer, (LipschitzLayer, Block, Residual, Parallel)):
                raise BronetError(f"layer {name} of a Chain must be a Lipschitz layer, got {type(layer).__name__}")
        self.layers = nn.Sequential(OrderedDict(layers))
        self.head = head
        self._check_shapes()

    @torch.no_grad()
    def _check_shapes(self) -> None:
        """Raise, with the name of the layer, unless each takes what the one before it gives."""
        x = next(self.head.parameters()).new_zeros(1, *self.image_shape)
        with evaluating(self):  # in which a pass changes nothing
            for name, layer in (*self.layers.named_children(), ("head", self.head)):
                try:
                    x = layer(x)
                except (BronetError, RuntimeError) as error:
                    must = f"must take activations of shape {tuple(x.shape[1:])}"
                    raise BronetError(f"layer {name} of a Chain {must}: {first_line(error)}") from None


ChainParts = nn.Module | Mapping[str, nn.Module] | Iterable[nn.Module]


def _named(parts: Iterable[ChainParts]) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of the parts of a chain, with their names; without one it is empty."""
    for part in parts:
        match part:
            case Mapping():
                yield from part.items()
            case nn.Sequential():
                yield from part.named_children()
            case nn.Module():
                yield "", part
            case _:
                yield from (("", layer) for layer in part)


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


class _Estimate(fx.Interpreter):
    """Multiplies constants along the trace, in place of activations; a layer that is used twice counts twice."""

    module: CertifiableModel

    def __init__(self, model: CertifiableModel, trace: fx.Graph) -> None:
        super().__init__(model, garbage_collect_values=False, graph=trace)
        self.extra_traceback = False
        self.constants = dict[fx.Node, Tensor]()

    def of_head(self, one: Tensor) -> Tensor:
        """Return the constant of what the head is given, which must be the last operation."""
        self.run(one)
        last = self.graph.output_node().args[0]
        if not isinstance(last, fx.Node) or last.op != "call_module" or self._called(last) is not self.module.head:
            raise BronetError(f"the forward of {type(self.module).__name__} must end with its head to be trained")
        return self.constants[last.all_input_nodes[0]]

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "output":
            return None
        given: list[Tensor] = []
        map_arg((n.args, n.kwargs), lambda source: given.extend(self.constants.get(source, torch.empty(0)).view(-1)))
        if not given and n.op != "placeholder":
            return super().run_node(n)
        value = self.constants[n] = self._constant(n, given) if given else super().run_node(n)
        return value

    def _called(self, node: fx.Node) -> nn.Module:
        return self.module.get_submodule(str(node.target))

    def _constant(self, node: fx.Node, given: list[Tensor]) -> Tensor:
        """Return the constant of what an operation gives, from those of the activations that it takes."""
        if node.op == "call_module":
            module = self._called(node)
            if isinstance(module, (Block, LipschitzLayer)):
                return given[0] * module.lipschitz_estimate()
            if is_single(module) and not any(True for _ in module.parameters()):
                return given[0]
            name = type(module).__name__
            raise BronetError(f"{node.target} must be a Lipschitz layer to be trained with its constant, got {name}")
        rule = RULES.get(node.target)
        if rule in (linear.add, linear.subtract):
            return torch.stack(given).sum()
        if rule in (linear.multiply, linear.divide) and len(given) == 1:
            args, _ = self.fetch_args_kwargs_from_env(node)
            constant = next(a for a, source in zip(args, node.args, strict=True) if source not in self.constants)
            size = torch.as_tensor(constant).abs()
            return given[0] * size.max() if rule is linear.multiply else given[0] / size.min()
        if rule in (moves.cat, moves.stack):
            return torch.stack(given).square().sum().sqrt()
        if rule in moves.MOVING or node.target in _KEEPING:
            return given[0]
        raise BronetError(f"{where(node)} has no constant for training; see bronet.check")


_KEEPING = (*moves.PARTS, "size", getattr, "relu", torch.relu, nn.functional.relu)
_TRACES: WeakKeyDictionary[nn.Module, tuple[object, fx.Graph]] = WeakKeyDictionary()


def _trace_of(model: nn.Module) -> fx.Graph:
    """Return the trace of a model, made anew when a part of it is another."""
    parts = tuple((path, id(part)) for path, part in model.named_modules())
    known = _TRACES.get(model)
    if known is None or known[0] != parts:
        known = _TRACES[model] = (parts, traced(model))
    return known[1]
