"""What has been read of a model so far: its operations with their proved maps, and what they give for the sample."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate

from bronet.errors import BronetError
from bronet.graph import maps
from bronet.graph.constants import ProvedNode
from bronet.graph.faithful import UnreadableError
from bronet.graph.tracing import first_line
from bronet.graph.values import Activation, refused
from bronet.proof.proved_map import ProvedMap, require_sealed


@dataclass(frozen=True)
class Operation:
    """An operation of a model: its proved map, its kind, its place in the user's code, and the module if it is one."""

    node: ProvedNode
    kind: str
    place: str
    module: nn.Module | None

    @property
    def known(self) -> bool:
        """Whether a bound is known."""
        return self.node.proved.lipschitz != maps.UNKNOWN


@dataclass(frozen=True)
class Graph:
    """The operations that a model's output depends on, in order, and the constants of their values, if all have one."""

    operations: tuple[Operation, ...]
    constants: tuple[float, ...] | None
    device: torch.device

    @property
    def nodes(self) -> tuple[ProvedNode, ...]:
        """The proved maps alone."""
        return tuple(operation.node for operation in self.operations)


class Recorder:
    """The operations of a model as they are read; `current` is the node of the trace that is being read."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.selected: dict[int, Tensor] = {}
        self.current: fx.Node

    def reached(self, last: int) -> tuple[list[Operation], dict[int, Tensor]]:
        """Return the operations behind a value, renumbered, and which entries those select that only select."""
        needed, waiting = {0}, [last]
        while waiting:
            value = waiting.pop()
            if value not in needed:
                needed.add(value)
                waiting += self.operations[value - 1].node.inputs
        number = {value: position for position, value in enumerate(sorted(needed))}
        kept = []
        for value in sorted(needed - {0}):
            read = self.operations[value - 1]
            node = ProvedNode(read.node.name, read.node.proved, tuple(number[i] for i in read.node.inputs))
            kept.append(Operation(node, read.kind, read.place, read.module))
        return kept, {number[value]: entries for value, entries in self.selected.items() if value in needed}

    def tried(self, name: str, proved: ProvedMap, inputs: Sequence[Activation]) -> Tensor:
        """Return what a map makes of the sample; raise unless it is sealed and of the shape that its proof is about.

        A shift that was broadcast over channels, say, would stretch distances by more than its proof says.
        """
        require_sealed(proved.apply, name)
        result = proved.apply(*(x.sample for x in inputs))
        if tuple(result.shape[1:]) != proved.output_shape:
            got = tuple(result.shape[1:])
            raise UnreadableError(f"{name} must give activations of shape {proved.output_shape}, got {got}")
        return result

    def unknown(  # noqa: PLR0917
        self, name: str, kind: str, inputs: list[Any], result: Any, reason: str, module: nn.Module | None = None
    ) -> Any:
        """Return the value of an operation without a bound; of several results, each is one."""
        if isinstance(result, (tuple, list)):
            return tuple(self.unknown(name, kind, inputs, part, reason, module) for part in result)
        if not isinstance(result, Tensor):
            got = type(result).__name__
            raise UnreadableError(
                f"{name}{self.at()} must give a tensor, got {got}: no control may depend on activations"
            )
        shape = tuple(result.shape[1:])
        return self.added(name, kind, inputs, maps.unbounded(refused, shape, reason), result, module)

    def added(  # noqa: PLR0917
        self,
        name: str,
        kind: str,
        inputs: Sequence[Activation],
        proved: ProvedMap,
        sample: Tensor,
        module: nn.Module | None = None,
    ) -> Activation:
        """Keep an operation and return its value; one that only selects entries is remembered as such."""
        node = ProvedNode(name, proved, tuple(x.value for x in inputs))
        self.operations.append(Operation(node, kind, str(self.current.meta.get("place", "")), module))
        value = len(self.operations)
        if len(inputs) == 1 and proved.remark == maps.MOVES and sample.numel() < inputs[0].sample.numel():
            entries = maps.entries_of(proved.apply, inputs[0].shape)
            self.selected[value] = entries[entries >= 0]
        return Activation(value, sample)

    def run(self, name: str, call: Any, *args: Any, **settings: Any) -> Any:
        """Return what an operation of the model's own makes of the sample, of which it gets a copy."""
        own = map_aggregate(args, lambda a: a.clone() if isinstance(a, Tensor) else a)
        try:
            return call(*own, **settings)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            shapes = ", ".join(str(tuple(a.shape[1:])) for a in args if isinstance(a, Tensor))
            raise BronetError(
                f"{name} must take activations of shape {shapes}, but it says: {first_line(error)}"
            ) from None

    def name_of(self, node: fx.Node) -> str:
        """Return the name of a function, behind the path of the module that calls it."""
        stack = node.meta.get("nn_module_stack") or {}
        caller = next((str(path) for path, _ in reversed(stack.values())), "") if stack else ""
        own = str(node.target) if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        return f"{caller or 'forward'}: {own}"

    def where(self) -> str:
        return f"{self.name_of(self.current)}{self.at()}"

    def at(self) -> str:
        place = self.current.meta.get("place")
        return f" at {place}" if place else ""
