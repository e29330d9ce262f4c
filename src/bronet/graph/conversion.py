"""`convert`: a plain torch classifier rebuilt of Lipschitz layers on its own graph, or refused naming what cannot be.

Shapes and connections of the model are kept, its weights are not: a reflector's parameter is no convolution kernel.
Train the result.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, fx, nn

from bronet.errors import BronetError
from bronet.graph import linear, moves
from bronet.graph.counterparts import COUNTERPARTS, KNOWN, Mix, as_module
from bronet.graph.model import CertifiableModel, computes_ahead
from bronet.graph.operations import Shape
from bronet.graph.trace import (
    evaluating,
    first_line,
    is_single,
    kind_of,
    name_of,
    require_faithful,
    traced,
    unwrapped,
    where,
)
from bronet.layers import Bias, Block, Centring, Head, LastLayerNormalized, LipschitzLayer, MaxMin, Normalization
from bronet.layers.base import checked_shape


class Converted(CertifiableModel):
    """What `convert` returns: `layers.code` is its forward up to the head, `changes` says what became of what."""

    def __init__(
        self, image_shape: tuple[int, int, int], layers: fx.GraphModule, head: Head, changes: Sequence[str]
    ) -> None:
        super().__init__(image_shape)
        self.layers, self.head, self.changes = layers, head, tuple(changes)

    @computes_ahead
    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        logits: Tensor = self.head(self.layers(images))
        return logits


def convert(
    model: nn.Module,
    input_shape: tuple[int, int, int],
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
    `MaxMin`, batch norms `Centring` (no division), means over windows `ScaledMeanPool`, sums of two branches a learned
    `Mix`; dropout goes, and so does a log_softmax at the end, which changes no difference of logits.

    Args:
        input_shape: (channel, height, width) of an image with pixels in [0, 1].
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
    if not isinstance(means, Sequence) or not all(isinstance(value, (int, float)) for value in means):
        raise BronetError(f"mean must be a sequence of numbers, one for each channel, got {mean!r}")
    if len(means) != channels:
        raise BronetError(f"mean must have one value for each of {channels} channels, got {len(means)}")
    require_faithful(model)
    if is_single(model):
        model = nn.Sequential(model)
    with evaluating(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
        trace = traced(model)
        conversion = _Conversion(model, trace, layer, Normalization(tuple(means), std=std))
        parameter = next(model.parameters(), torch.empty(0))
        images = torch.zeros(_IMAGES, *input_shape, device=parameter.device, dtype=parameter.dtype)
        torch.manual_seed(seed)
        conversion.run(images)
    return Converted(input_shape, conversion.finished(), conversion.head, conversion.changes)


_IMAGES = 2
_LOG_SOFTMAX = (F.log_softmax, torch.log_softmax, "log_softmax")


def _last_linear(trace: fx.Graph, model: nn.Module) -> fx.Node:
    """Return the linear layer that gives the logits."""
    node = next(iter(reversed(trace.nodes))).args[0]
    kinds: dict[fx.Node, type[nn.Module]] = {}
    for each in trace.nodes:
        if each.op == "call_module":
            each.meta["module"] = model.get_submodule(str(each.target))
            kinds[each] = kind_of(each.meta["module"])
    if isinstance(node, fx.Node) and (node.target in _LOG_SOFTMAX or kinds.get(node) is nn.LogSoftmax):
        node = node.all_input_nodes[0]
    if isinstance(node, fx.Node) and kinds.get(node) is nn.Linear:
        return node
    got, own = "other than one tensor", ""
    if isinstance(node, fx.Node):
        got = f"{name_of(node)} ({kinds[node].__name__})" if node in kinds else where(node)
        own = "; bronet.Chain takes bronet's own layers" if isinstance(node.meta.get("module"), Head) else ""
    raise BronetError(f"the last step must be a torch.nn.Linear that returns logits, got {got}{own}")


class _Conversion(fx.Interpreter):
    """Runs a model on zeros, which shows shapes, and builds the new graph of what each of its operations becomes."""

    def __init__(self, model: nn.Module, trace: fx.Graph, kind: str, normalization: Normalization) -> None:
        super().__init__(model, garbage_collect_values=False, graph=trace)
        self.extra_traceback = False
        self.kind, self.normalization = kind, normalization
        self.last = _last_linear(trace, model)
        self.new, self.made = fx.Graph(), dict[fx.Node, fx.Node]()
        self.root: dict[str, Any] = {}
        self.changes: list[str] = []
        self.converted: set[str] = set()
        self.head: LastLayerNormalized

    def run_node(self, n: fx.Node) -> Any:
        if self.made.get(self.last) is not None:
            return None
        if n is self.last and len(shape := _shapes(n)[0]) != 1:
            raise BronetError(
                f"{n.target}: a Linear must follow a Flatten to be converted, got activations of shape {shape}"
            )
        try:
            result = super().run_node(n)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            shape = next(iter(_shapes(n)), ())
            raise BronetError(
                f"{name_of(n)} must take activations of shape {shape}, but it says: {first_line(error)}"
            ) from None
        is_of_images = n.op == "placeholder" or any(source.meta["is_of_images"] for source in n.all_input_nodes)
        is_activation = is_of_images and isinstance(result, Tensor)
        n.meta.update(is_of_images=is_of_images, value=result, shape=tuple(result.shape[1:]) if is_activation else None)
        self._add(n)
        return result

    def _add(self, node: fx.Node) -> None:
        """Convert one operation of the model."""
        if node is self.last:
            module = node.meta["module"]
            self.head = LastLayerNormalized(module.in_features, module.out_features)
            self.changes.append(f"{node.target}: Linear becomes LastLayerNormalized")
            self.made[node] = self.new.output(self.made[node.all_input_nodes[0]])
        elif node.op == "placeholder":
            if self.made:
                raise BronetError(
                    f"forward of {type(self.module).__name__} must take one tensor, got also {node.target}"
                )
            images = self.new.placeholder("images")
            self.made[node] = self._layer(self.normalization, "normalization", images)
        elif node.op == "get_attr":
            name, value = f"constant_{_word(str(node.target))}", node.meta["value"]
            self.root[name] = copy.deepcopy(value)
            self.made[node] = self.new.get_attr(name)
        elif node.meta["shape"] is not None and (parts := self._counterparts(node)) is not None:
            made = self.made[node.all_input_nodes[0]]
            for part in parts:
                made = self._layer(part, name_of(node), made)
            self.made[node] = made
        elif _is_sum(node):
            x, y = (self.made[source] for source in node.all_input_nodes)
            self.made[node] = self._layer(Mix(), name_of(node), x, y)
            self.changes.append(f"{where(node)}: a sum becomes Mix, (1 - w) x + w y with a learned w")
        elif node.meta["shape"] is None or node.target in _KEPT or node.target in moves.PARTS:
            self.made[node] = self.new.node_copy(node, lambda source: _or_number(source, self.made))
        else:
            kind = f" ({kind_of(node.meta['module']).__name__})" if "module" in node.meta else ""
            raise BronetError(f"{where(node)}{kind} must be a layer with a Lipschitz counterpart; {KNOWN} have one")

    def _counterparts(self, node: fx.Node) -> list[nn.Module] | None:
        """Return the layers that an operation becomes, checked; None where it has none."""
        path, wanted, shapes = name_of(node), node.meta["shape"], _shapes(node)
        module = node.meta.get("module") or as_module(node)
        if module is None:
            return None
        if len(shapes) != 1:
            raise BronetError(f"{where(node)} must take one tensor to be converted, got {len(shapes)}")
        if any(True for _ in module.parameters()) and path in self.converted:
            raise BronetError(f"{path} must be used once to be converted, as shared weights are not kept, got 2 uses")
        self.converted.add(path)
        if isinstance(module, (LipschitzLayer, Block)):
            return [copy.deepcopy(module)]
        kind, shape = kind_of(module), shapes[0]
        if kind not in COUNTERPARTS:
            raise BronetError(f"{where(node)}: {kind.__name__} has no Lipschitz counterpart; {KNOWN} have")
        try:
            parts = COUNTERPARTS[kind](module, shape, wanted, self.kind)
            for part in parts:
                shape = tuple(part.eval()(torch.zeros(1, *shape)).shape[1:])
                part.train()
        except BronetError as error:
            raise BronetError(f"{where(node)}: {error}") from None
        if shape != wanted:
            raise BronetError(
                f"{where(node)}: a Lipschitz counterpart of {kind.__name__} must keep its output's shape {wanted}, but "
                f"it gives {shape}; use a padding of half the kernel, and a stride that divides the image"
            )
        made = ", ".join(type(part).__name__ for part in parts) or "nothing"
        self.changes.append(f"{path}: {kind.__name__} becomes {made}")
        return parts

    def _layer(self, part: nn.Module, path: str, *inputs: fx.Node) -> fx.Node:
        node = self.new.call_module("unnamed", inputs)
        node.meta.update(layer=part, path=path)
        return node

    def finished(self) -> fx.GraphModule:
        """Return the new graph as a module."""
        self.new.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
        for node in self.new.nodes:
            _fuse(node)
        used = {node.target for node in self.new.nodes if node.op == "get_attr"}
        root: dict[str, Any] = {name: value for name, value in self.root.items() if name in used}
        calls = [node for node in self.new.nodes if node.op == "call_module"]
        for position, node in enumerate(calls, start=-1):
            node.target = "normalization" if position < 0 else f"{position}_{_word(node.meta['path'])}"
            root[node.target] = node.meta["layer"]
        return fx.GraphModule(root, self.new, "Layers")


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


def _shapes(node: fx.Node) -> list[Shape]:
    """Return the shapes of the activations that an operation takes."""
    return [shape for source in node.all_input_nodes if (shape := source.meta["shape"]) is not None]


def _word(path: str) -> str:
    """Return a path as a part of a module's name, which must have no dots."""
    return "_".join("".join(c if c.isalnum() else " " for c in path).split())


def _or_number(source: fx.Node, made: dict[fx.Node, fx.Node]) -> Any:
    """Return a node's counterpart, or the number that it is for every batch: other sizes than that of the batch."""
    value = source.meta["value"]
    return value if isinstance(value, int) and not _is_of_batch(source) else made[source]


def _is_of_batch(node: fx.Node) -> bool:
    """Whether a number follows from the number of images."""
    if node.meta["shape"] is not None or not isinstance(node.meta["value"], int):
        return False
    asks = [a for a in node.args[1:] if isinstance(a, int)]
    of_sizes = not isinstance(node.all_input_nodes[0].meta["value"], int) if node.all_input_nodes else False
    return asks[:1] == [0] if of_sizes else any(_is_of_batch(source) for source in node.all_input_nodes)


def _is_sum(node: fx.Node) -> bool:
    """Whether two activations of one shape are added."""
    is_addition = node.op != "call_module" and linear.FUNCTIONS.get(node.target) is linear.add
    return is_addition and _shapes(node) == [node.meta["shape"]] * 2


_ARITHMETIC = (linear.add, linear.subtract, linear.multiply, linear.divide, linear.negative)
_KEPT = {*moves.FUNCTIONS, *(target for target, rule in linear.FUNCTIONS.items() if rule in _ARITHMETIC)}
