"""`convert`: a plain torch classifier rebuilt of Lipschitz layers on its own graph, or refused naming what cannot be.

Shapes and connections of the model are kept, its weights are not: a reflector's parameter is no convolution kernel.
Train the result.
"""

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from bronet.errors import BronetError
from bronet.graph import linear, moves
from bronet.graph.counterparts import COUNTERPARTS, KNOWN, Step
from bronet.graph.model import CertifiableModel
from bronet.graph.operations import RULES
from bronet.graph.trace import copy_of, kind_of, name_of, shapes_of, traced, unwrapped, where
from bronet.layers import Bias, Block, Centring, Head, LastLayerNormalized, LipschitzLayer, MaxMin, Normalization
from bronet.layers.base import checked_shape
from bronet.layers.compose import Mix


class Converted(CertifiableModel):
    """What `convert` returns: `layers.code` is its forward up to the head, `changes` says what became of what."""

    def __init__(
        self, image_shape: tuple[int, ...], layers: fx.GraphModule, head: Head, changes: Sequence[str]
    ) -> None:
        super().__init__(image_shape)
        self.layers, self.head, self.changes = layers, head, tuple(changes)


def convert(
    model: nn.Module,
    input_shape: tuple[int, ...],
    *,
    layer: str = "bro",
    mean: Sequence[float] | None = None,
    std: float = 1.0,
    seed: int = 0,
) -> Converted:
    """Return a certifiable network with the shapes of a plain torch model, for training from scratch.

    Guaranteed: every layer of the result has a proved constant, one for all but the normalisation (1 / std), the head,
    and kinds of `layer` that are only regularised; each step's output has the shape it had. Not kept: the weights.

    Convolutions become `layer` convolutions, linear layers `BROLinear`, the last one `LastLayerNormalized`, activations
    `MaxMin`, norms `Centring` (no division), means over windows `ScaledMeanPool`, sums of two branches a learned `Mix`;
    dropout goes, and so does a log_softmax at the end, which changes no difference of logits. Images of another size
    are cut or framed with zeros.

    Args:
        input_shape: (channel, height, width) of an image with pixels in [0, 1], or (features,) of a vector.
        layer: the kind of convolution, a word of `bronet.layers.CONVOLUTIONS`.
        mean, std: of the normalisation that becomes the first layer; by default 0.5 is subtracted.
        seed: of the new weights.
    """
    model = unwrapped(model)
    if isinstance(model, CertifiableModel):
        raise BronetError(
            f"model must be a plain torch model, got {type(model).__name__}, which is certifiable already"
        )
    channels = checked_shape(input_shape)[0]
    means = (0.5,) * channels if mean is None else mean
    if not isinstance(means, Sequence) or len(means) != channels:
        got = len(means) if isinstance(means, Sequence) else means
        raise BronetError(f"mean must have one value for each of {channels} channels, got {got}")
    twin = copy_of(model)
    parameter = next(twin.parameters(), torch.empty(0))
    images = torch.zeros(2, *input_shape, device=parameter.device, dtype=parameter.dtype)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        conversion = _Conversion(twin, traced(twin, images), layer, Normalization(tuple(means), std=std))
        torch.manual_seed(seed)
        return Converted(input_shape, conversion.finished(), conversion.head, conversion.changes)


def _last_linear(trace: fx.Graph, model: nn.Module) -> fx.Node:
    """Return the linear layer that gives the logits; a log_softmax behind it changes none of their differences."""
    node = trace.output_node().args[0]
    if isinstance(node, fx.Node) and RULES.get(node.target) is linear.log_softmax:
        node = node.all_input_nodes[0]
    if isinstance(node, fx.Node) and RULES.get(node.target) is linear.linear:
        return node
    got, own = "other than one tensor", ""
    if isinstance(node, fx.Node):
        kind = kind_of(node)
        got = where(node) if kind == "function" else f"{name_of(node)} ({kind})"
        is_head = node.op == "call_module" and isinstance(model.get_submodule(str(node.target)), Head)
        own = "; bronet.Chain takes bronet's own layers" if is_head else ""
    raise BronetError(f"the last step must be a torch.nn.Linear that returns logits, got {got}{own}")


class _Conversion:
    """Builds the new graph of what each operation of a trace becomes."""

    def __init__(self, model: nn.Module, trace: fx.Graph, kind: str, normalization: Normalization) -> None:
        self.model, self.trace, self.kind, self.normalization = model, trace, kind, normalization
        self.new, self.made = fx.Graph(), dict[fx.Node, fx.Node]()
        self.root: dict[str, Any] = {}
        self.changes: list[str] = []
        self.converted: set[object] = set()
        self.last = _last_linear(trace, model)
        self.head: LastLayerNormalized

    def finished(self) -> fx.GraphModule:
        """Convert everything up to the last linear layer, and return the new graph as a module."""
        for node in self.trace.nodes:
            if node is self.last:
                break
            self.made[node] = self._converted(node)
        self._end(node)
        self.new.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
        for node in self.new.nodes:
            _fuse(node)
        calls = [node for node in self.new.nodes if node.op == "call_module"]
        for position, node in enumerate(calls, start=-1):
            node.target = "normalization" if position < 0 else f"{position}_{_word(node.meta['path'])}"
            self.root[node.target] = node.meta["layer"]
        return fx.GraphModule(self.root, self.new, "Layers")

    def _end(self, node: fx.Node) -> None:
        (shape,), value = shapes_of(node), node.meta["value"]
        if len(shape) != 1:
            taken = f"got activations of shape {tuple(shape)}"
            raise BronetError(f"{name_of(node)}: a Linear must follow a Flatten to be converted, {taken}")
        self.head = LastLayerNormalized(shape[0], value.shape[1])
        self.changes.append(f"{name_of(node)}: Linear becomes LastLayerNormalized")
        self.new.output(self.made[node.all_input_nodes[0]])

    def _converted(self, node: fx.Node) -> fx.Node:
        """Convert one operation of the model."""
        if node.op == "placeholder":
            return self._layer(self.normalization, "normalization", self.new.placeholder("images"))
        if node.op == "get_attr":
            name = f"constant_{_word(str(node.target))}"
            self.root[name] = copy.deepcopy(node.meta["value"])
            return self.new.get_attr(name)
        rule, value = RULES.get(node.target), node.meta["value"]
        shape = tuple(value.shape[1:]) if isinstance(value, Tensor) else ()
        stays = node.op != "call_module" and (not shapes_of(node) or node.target in moves.PARTS)
        parts = None if stays else self._counterparts(node, shape)
        inputs = [self.made[source] for source in node.all_input_nodes]
        if parts is not None:
            for part in parts:
                inputs = [self._layer(part, name_of(node), *inputs[:1])]
        elif not stays and rule is linear.add and [shape] * 2 == shapes_of(node):
            self.changes.append(f"{where(node)}: a sum becomes Mix, (1 - w) x + w y with a learned w")
            inputs = [self._layer(Mix(), name_of(node), *inputs)]
        elif rule in (moves.reshaped, moves.expand):
            # Of sizes only that of the batch may differ from one batch to another.
            method = "expand" if rule is moves.expand else "reshape"
            inputs = [self.new.call_method(method, (inputs[0], -1, *shape))]
        elif stays or rule in _KEPT:
            inputs = [self.new.node_copy(node, lambda source: self.made[source])]
        else:
            kind = "" if kind_of(node) == "function" else f" ({kind_of(node)})"
            raise BronetError(f"{where(node)}{kind} must have a Lipschitz counterpart; {KNOWN} have one")
        return inputs[0]

    def _counterparts(self, node: fx.Node, wanted: tuple[int, ...]) -> list[nn.Module] | None:
        """Return the layers that an operation becomes, checked; None where it stays."""
        path, kind, shape = name_of(node), kind_of(node), tuple(shapes_of(node)[0])
        weights = {source.target for source in node.all_input_nodes if source.op == "get_attr"}
        counterpart = COUNTERPARTS.get(RULES[node.target]) if node.target in RULES else None
        own = self.model.get_submodule(str(node.target)) if node.op == "call_module" else None
        parts: list[nn.Module] | None = None
        if isinstance(own, (LipschitzLayer, Block)):
            parts, weights = [copy.deepcopy(own)], {node.target} if any(True for _ in own.parameters()) else set()
        elif counterpart is not None:
            args, settings = map_arg((node.args, node.kwargs), lambda source: source.meta["value"])
            after = self.made[node.all_input_nodes[0]].meta.get("layer")
            try:
                given = inspect.signature(RULES[node.target]).bind(None, *args, **settings)
                given.apply_defaults()
                parts = counterpart(Step(shape, wanted, self.kind, given.arguments, after))
            except (BronetError, TypeError) as error:
                raise BronetError(f"{where(node)}: {error}") from None
        if parts is None:
            return None
        if weights & self.converted:
            raise BronetError(f"{path} must be used once to be converted, as shared weights are not kept, got 2 uses")
        self.converted |= weights
        for part in parts:
            shape = tuple(part.eval()(torch.zeros(1, *shape)).shape[1:])
            part.train()
        if shape != wanted:
            raise BronetError(
                f"{where(node)}: a Lipschitz counterpart of {kind} must keep its output's shape {wanted}, got {shape}"
            )
        if own is None:
            made = ", ".join(type(part).__name__ for part in parts) or "nothing"
            self.changes.append(f"{path}{'' if kind == 'function' else f': {kind}'} becomes {made}")
        return parts

    def _layer(self, part: nn.Module, path: str, *inputs: fx.Node) -> fx.Node:
        node = self.new.call_module("unnamed", inputs)
        node.meta.update(layer=part, path=path)
        return node


def _fuse(node: fx.Node) -> None:
    """Make a layer with its shift and MaxMin one block, which runs faster on a GPU; of two shifts the last suffices."""
    own = node.meta.get("layer")
    if not isinstance(own, (Centring, MaxMin)):
        return
    shift = node.all_input_nodes[0]
    if len(shift.users) > 1:
        return
    if isinstance(own, Centring) and isinstance(shift.meta.get("layer"), Bias):
        shift.replace_all_uses_with(shift.all_input_nodes[0])
        shift.graph.erase_node(shift)
    elif isinstance(own, MaxMin) and isinstance(shift.meta.get("layer"), (Bias, Centring)):
        first = shift.all_input_nodes[0]
        if len(first.users) == 1 and isinstance(first.meta.get("layer"), LipschitzLayer):
            first.meta["layer"] = Block(first.meta["layer"], shift.meta["layer"], own)
            node.replace_all_uses_with(first)
            node.graph.erase_node(node)
            node.graph.erase_node(shift)


def _word(path: str) -> str:
    """Return a path as a part of a module's name, which must have no dots."""
    return "_".join("".join(c if c.isalnum() else " " for c in path).split())


_ARITHMETIC = {linear.add, linear.subtract, linear.multiply, linear.divide, linear.negative}
_KEPT = moves.MOVING | _ARITHMETIC
