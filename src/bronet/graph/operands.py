"""What a rule is given: an operation's arguments, activations among them, and the shape of its result."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bronet.graph.maps import Shape
from bronet.proof.proved_map import ProvedMap


class NoRuleError(Exception):
    """No bound is known for an operation with these arguments; the text says why."""


class Batch(int):
    """The number of images, as a size of a batch of activations shows it: the same number elsewhere is none."""


@dataclass(frozen=True)
class Input:
    """An activation among the arguments, by the shape of one image's."""

    shape: Shape


@dataclass(frozen=True)
class Output:
    """The shape of what an operation gives for one image, and whether that is what the model gives."""

    shape: Shape
    is_last: bool = False


Rule = Callable[..., ProvedMap]


def axis_of(dim: int, x: Input) -> int:
    """Return an axis of one image's activations, counted from zero, for a dimension of the batch's."""
    axis = dim - 1 if dim >= 0 else dim + len(x.shape)
    if not 0 <= axis < len(x.shape):
        raise NoRuleError(f"dimension {dim} is that of the batch: images must not influence one another")
    return axis


def axes_of(dim: int | Sequence[int] | None, x: Input) -> list[int]:
    if dim is None:
        raise NoRuleError("it goes over all images of a batch; name its dimensions")
    return [axis_of(d, x) for d in ([dim] if isinstance(dim, int) else dim)]


def pair_of(value: int | Sequence[int]) -> tuple[int, int]:
    """Return the two entries of a size along both axes."""
    return (value, value) if isinstance(value, int) else (value[0], value[-1])
