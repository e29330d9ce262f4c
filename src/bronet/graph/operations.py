"""Operations of a model: what a rule is given of one, what is kept of one, and the table of all rules.

A rule takes what torch's function takes, after what it gives: a `Value` stands for every activation, all else is a
constant. It returns the operation's proved map, whose `apply` is made of operations that the standard model
of rounding covers, which a library's convolution need not be; or it raises `NoRuleError`, saying why no bound is known.
Torch's own modules need no rules: their forwards are followed to the functions that they call.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bronet.proof.proved_map import ProvedMap

Shape = tuple[int, ...]
Apply = Callable[..., Tensor]
Rule = Callable[..., ProvedMap]
Size = int | Sequence[int]

BY_DEFINITION = "for every input"

RULES: dict[Any, Rule] = {}
"""Every function of torch that has a rule, and every method of a tensor, by its name."""


def rule_of(*names: str) -> Callable[[Rule], Rule]:
    """Enter a rule in the table for the functions of these names in torch and operator, and for the methods."""

    def enter(rule: Rule) -> Rule:
        for name in names:
            for written in (name, f"{name}_", f"i{name}"):
                found = (getattr(home, written, None) for home in (torch, F, operator, torch.linalg))
                RULES.update(dict.fromkeys([written, *(function for function in found if callable(function))], rule))
        return rule

    return enter


class NoRuleError(Exception):
    """No bound is known for an operation with these arguments; the text says why."""


class BatchSize(int):
    """The number of images, as a size of a batch of activations shows it: the same number elsewhere is none."""


@dataclass(frozen=True)
class Value:
    """Activations that an operation takes or gives, by the shape of one image's, and whether the model returns them."""

    shape: Shape
    is_last: bool = False


@dataclass(frozen=True)
class Operation:
    """An operation of a model: its path, its proved map, and which values it takes.

    Value 0 is the image, value k + 1 what operation k gives. `kind` is the type of a module, `place` a line of the
    user's code. `entries` says which entries of its one input it gives, unchanged, where those are some of them.
    """

    path: str
    proved: ProvedMap
    inputs: tuple[int, ...]
    kind: str = "function"
    place: str = ""
    entries: Tensor | None = None

    @property
    def bound(self) -> float | None:
        """An upper bound on the Lipschitz constant, None where none is known."""
        return self.proved.lipschitz if self.proved.known else None

    @property
    def output_shape(self) -> Shape:
        """The shape behind the operation, of one image's activations."""
        return self.proved.output_shape

    @property
    def reason(self) -> str:
        """How the bound is known, or why there is none."""
        return self.proved.remark or "proved"

    def __str__(self) -> str:
        kind = f" ({self.kind})" if self.kind != "function" else ""
        return f"{self.path}{kind}" + (f" at {self.place}" if self.place else "")


@dataclass(frozen=True)
class Graph:
    """The operations that a model's output depends on, in order, the last of which gives it.

    `note` says what of the model's forward is left out, as it changes nothing of what is proved.
    """

    operations: tuple[Operation, ...]
    device: torch.device
    note: str = ""


def axes_of(dim: Size | None, x: Value) -> list[int]:
    """Return axes of one image's activations, counted from zero, for dimensions of the batch's."""
    if dim is None:
        raise NoRuleError("it goes over all images of a batch; name its dimensions")
    axes = {d: d - 1 if d >= 0 else d + len(x.shape) for d in ([dim] if isinstance(dim, int) else dim)}
    for d, axis in axes.items():
        if not 0 <= axis < len(x.shape):
            raise NoRuleError(f"dimension {d} is that of the batch: images must not influence one another")
    return list(axes.values())


def method_of(name: str) -> Callable[..., Any]:
    """Return a method by its name, as a function of what has it."""
    return lambda thing, *args, **settings: getattr(thing, name)(*args, **settings)


def pair_of(value: Size) -> tuple[int, int]:
    """Return the two entries of a size along both axes."""
    return (value, value) if isinstance(value, int) else (value[0], value[-1])
