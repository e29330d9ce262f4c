"""The proved program of a model, and what is proved of a batch: a float64 forward pass that bounds its own rounding.

The claim (docs/soundness.md): if an image has radius r, the float64 program computes the same class at every float64
point within l2 distance r. Two budgets make it hold for the program, not only for real arithmetic: one for the rounding
at the image, one for the rounding at a point of the ball, which grows with r. Both are linear in r, so the largest r is
found by a division. A radius also ends where a number could overflow. No estimate enters, and TF32 plays no part.

Disjoint parts of one value S that are processed apart and concatenated again move by |M t| at most, where t are the
movements of the parts, |t| <= |movement of S|, and M is a small matrix of constants that are not negative: each part
starts a row of its own, a map multiplies rows by its constant, a sum adds rows, a concatenation stacks them. At the
concatenation the norm of M multiplies the constant of S: for two halves the larger of two constants, where the root of
the sum of their squares is all that the joined distances say.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TypeVar

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.graph.model import CertifiableModel
from bronet.graph.operations import Graph, Operation
from bronet.graph.reading import read
from bronet.graph.trace import unwrapped
from bronet.layers.base import IMAGE_AXES, checked_shape
from bronet.proof.budget import TENSOR_SLACK, Budget, joined_constant
from bronet.proof.curvature import BentMap
from bronet.proof.proved_map import Join, ProvedMap, up
from bronet.proof.spectral import largest_singular_value
from bronet.radius import targeted_radii

# Numbers of the largest activations that a thread computes at once: they stay in the caches, their memory is kept for
# the next, and the columns of products are many enough, which a CPU takes by the dozen (docs/speed.md).
_NUMBERS_AT_ONCE, _DOZEN = 36 * 2**15, 12

T = TypeVar("T")


@dataclass(frozen=True)
class ProvedBatch:
    """What is proved of a batch: `targeted[i, j]` is the distance that image i provably keeps from class j."""

    prediction: Int[Tensor, " b"]
    margin: Float[Tensor, " b"]
    radius: Float[Tensor, " b"]
    targeted: Float[Tensor, "b k"]
    rounding: Float[Tensor, " b"]


@dataclass(frozen=True)
class ProvedNetwork:
    """A model's operations as proved float64 maps, the last of which gives logits.

    Its weights are its own: changes to the model do not reach it. `constants[v]` bounds the Lipschitz constant from the
    image to value v, where value 0 is the image and value k + 1 what node k gives. `note` says what of the forward is
    left out, as it changes no difference of logits.
    """

    nodes: tuple[Operation, ...]
    constants: tuple[float, ...]
    image_shape: tuple[int, ...]
    device: torch.device
    note: str = ""

    @property
    def layers(self) -> tuple[tuple[str, ProvedMap], ...]:
        """All maps but the last by name, in the order in which they are computed."""
        return tuple((node.path, node.proved) for node in self.nodes[:-1])

    @property
    def head(self) -> ProvedMap:
        """The last map, which gives the logits."""
        return self.nodes[-1].proved

    @property
    def lipschitz(self) -> float:
        """An upper bound on the constant of all before the last map, whose inputs are joined as it joins them."""
        last = self.nodes[-1]
        return joined_constant([self.constants[i] for i in last.inputs], last.proved.join)

    @property
    def gap_lipschitz(self) -> Float[Tensor, "k k"]:
        """Upper bounds on the Lipschitz constants of f_t - f_j from pixels; zero on the diagonal."""
        return self.gaps * up(self.lipschitz) * TENSOR_SLACK

    @property
    def gaps(self) -> Float[Tensor, "k k"]:
        """Upper bounds on the Lipschitz constants of f_t - f_j from what the last map takes; zero on the diagonal."""
        if self.head.gaps is not None:
            return self.head.gaps
        eye = torch.eye(self.head.output_shape[0], device=self.device, dtype=torch.float64)
        return up(math.sqrt(2.0) * self.head.lipschitz) * (1 - eye)

    def logits(self, images: Float[Tensor, "b ..."]) -> Float[Tensor, "b k"]:
        """Return the float64 logits: the program that the certificate speaks of."""
        values = {0: self._checked(images)}
        for value, node in enumerate(self.nodes, start=1):
            values[value] = node.proved.apply(*(values[i] for i in node.inputs))
            self._free(values, value)
        return values[len(self.nodes)]

    def values(self, images: Float[Tensor, "b ..."]) -> list[Tensor]:
        """Return the images and what each operation of the program gives, the logits last; nothing is checked."""
        values = [images]
        for node in self.nodes:
            values.append(node.proved.apply(*(values[i] for i in node.inputs)))
        return values

    @property
    def images_at_once(self) -> int:
        """How many images are best computed at once: by a GPU, or by one thread of a CPU."""
        if self.device.type != "cpu":
            return 250
        widest = max(
            math.prod(shape) for shape in (self.image_shape, *(node.proved.output_shape for node in self.nodes))
        )
        few = max(1, _NUMBERS_AT_ONCE // widest)
        return few - few % _DOZEN if few > _DOZEN else few

    @torch.no_grad()
    def certify(self, images: Shaped[Tensor, "b ..."]) -> ProvedBatch:
        """Return prediction and proved radius of every image; large batches are taken in parts."""
        parts = of_parts(self._certify, self._checked(images), self.images_at_once)
        return ProvedBatch(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(ProvedBatch)))

    def _certify(self, images: Float[Tensor, "b ..."]) -> ProvedBatch:
        values = {0: images}
        budgets = {0: Budget.of_images(values[0])}
        for value, node in enumerate(self.nodes, start=1):
            taken = Budget.together([budgets[i] for i in node.inputs], node.proved.join)
            values[value] = node.proved.apply(*(values[i] for i in node.inputs))
            if value < len(self.nodes):
                budgets[value] = taken.after(node.proved, values[value], self.constants[value])
            self._free(values, value)
        return self._conclude(values[len(self.nodes)], taken, [values[i] for i in self.nodes[-1].inputs])

    def _conclude(self, logits: Tensor, budget: Budget, inputs: Sequence[Tensor]) -> ProvedBatch:
        """Turn the budgets before the last map into a slack for each margin and a slope for each gap.

        Where the last map knows how its differences bend, the larger of two radii counts: each is a proof.
        """
        head = self.head
        prediction = logits.argmax(dim=1)
        gaps = self.gaps[prediction]
        # Each logit rounds by gain |h| + offset, at the image and at the point of the ball; two logits make a margin.
        own = head.gain * budget.size + head.offset
        elsewhere = head.gain * budget.elsewhere + head.offset
        propagated = gaps * (budget.at_image + budget.at_ball)[:, None]
        rounding, growth = 2 * (own + elsewhere)[:, None], 2 * (head.gain * budget.growth)[:, None]
        slack = (propagated + rounding) * TENSOR_SLACK
        slope = (gaps * budget.ball_slope[:, None] + growth) * TENSOR_SLACK
        reach = budget.reach_within(head)
        targeted = targeted_radii(logits, self.gap_lipschitz, slack=slack, slope=slope)
        if isinstance(head, BentMap):
            reach = reach.minimum(head.reach(budget))
            lost, secant = head.losses(inputs[0], logits, budget, self.lipschitz)
            lost = (lost + rounding) * TENSOR_SLACK
            targeted = targeted.maximum(targeted_radii(logits, 0 * self.gaps, slack=lost, slope=secant))
        targeted = torch.minimum(targeted, reach[:, None])
        targeted = targeted.scatter(1, prediction[:, None], torch.inf)
        runner_up = logits.scatter(1, prediction[:, None], -torch.inf).amax(dim=1)
        margin = logits.gather(1, prediction[:, None])[:, 0] - runner_up
        return ProvedBatch(prediction, margin, targeted.amin(dim=1), targeted, slack.amax(dim=1))

    def _free(self, values: dict[int, Tensor], value: int) -> None:
        """Forget the activations that nothing behind a value takes."""
        for i in {*self.nodes[value - 1].inputs, value}:
            if i in values and self._last_use.get(i, value) <= value < len(self.nodes):
                del values[i]

    @cached_property
    def _last_use(self) -> dict[int, int]:
        return {i: value for value, node in enumerate(self.nodes, start=1) for i in node.inputs}

    def _checked(self, images: Tensor) -> Tensor:
        if images.ndim != len(self.image_shape) + 1 or tuple(images.shape[1:]) != self.image_shape:
            raise BronetError(f"images must have shape (batch, {self.image_shape}), got {tuple(images.shape)}")
        if len(images) == 0:
            raise BronetError("images must be at least one, got none")
        if not images.is_floating_point():
            raise BronetError(f"images must be floating point in [0, 1], got {images.dtype}; divide uint8 by 255")
        if images.device != self.device:
            raise BronetError(f"images must be on the model's device {self.device}, got {images.device}")
        if not bool(torch.isfinite(images).all()):
            raise BronetError("images must be finite, got NaN or infinity; such an image has no certificate")
        return images.double()


@torch.no_grad()
def prove(model: nn.Module, image_shape: tuple[int, ...] | None = None) -> ProvedNetwork:
    """Return the proved float64 network of a model for images of this shape (default: the model's own).

    Weights and settings are read once, here. Running means are used as in evaluation, whatever mode the model is in.
    Guaranteed: on two random images the network computes what the model's copy in float64 computes.
    """
    model = unwrapped(model)
    shape = shape_for(model, image_shape)
    graph, name = read(model, shape), type(model).__name__
    for operation in graph.operations:
        if not operation.proved.known or math.isinf(operation.proved.gain):
            raise BronetError(
                f"{name} cannot be proved: {operation}: {operation.reason}; bronet.convert makes a network that can"
            )
    output = graph.operations[-1].proved.output_shape if graph.operations else ()
    if len(output) != 1 or output[0] < 2:
        raise BronetError(f"{name} must return logits of at least 2 classes, got shape {output}")
    return ProvedNetwork(graph.operations, constants_of(graph), shape, graph.device, graph.note)


def shape_for(model: nn.Module, shape: tuple[int, ...] | None, name: str = "image_shape") -> tuple[int, ...]:
    """Return the shape of images that a model is proved for, the one wanted or its own, or raise if it cannot be."""
    if not isinstance(model, CertifiableModel):
        if shape is None:
            raise BronetError(f"{name} must be given for a {type(model).__name__}, such as (3, 32, 32), got None")
        return checked_shape(shape, name)
    wanted = model.image_shape if shape is None else checked_shape(shape, name)
    if (len(wanted), wanted[0]) != (len(model.image_shape), model.image_shape[0]):
        sides = "two sides" if len(model.image_shape) == IMAGE_AXES else "no sides"
        raise BronetError(f"images must have {model.image_shape[0]} channels and {sides}, got shape {wanted}")
    return wanted


@torch.no_grad()
def of_parts(compute: Callable[[Tensor], T], images: Float[Tensor, "b ..."], at_once: int) -> list[T]:
    """Return what is computed of the parts of a batch, on a CPU in as many threads as torch may use there.

    Threads that divide one product between them wait for one another after each; with images of their own they do not.
    """
    threads = torch.get_num_threads()
    if images.device.type != "cpu" or threads == 1 or len(images) < threads * min(at_once, _DOZEN):
        return [compute(part) for part in images.split(at_once)]
    count = min(len(images), -(-len(images) // (at_once * threads)) * threads)
    alone = torch.no_grad()(compute)  # each thread has a mode of its own
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            tasks = [pool.submit(copy_context().run, alone, part) for part in images.tensor_split(count)]
            return [task.result() for task in tasks]
    finally:
        torch.set_num_threads(threads)  # which threads that begin later take over


_Row = tuple[float, ...]


def constants_of(graph: Graph) -> tuple[float, ...]:
    """Return an upper bound on the constant from the image to every value, the image's own first.

    Every operation must have a bound.
    """
    constants, rows = [1.0], [dict[int, _Row]()]
    parts = _disjoint_parts(graph)
    for value, node in enumerate(graph.operations, start=1):
        L, join = node.proved.lipschitz, node.proved.join
        best = up(joined_constant([constants[i] for i in node.inputs], join) * L)
        own: dict[int, _Row] = {}
        for source in set.intersection(*(set(rows[i]) for i in node.inputs)):
            matrix = [rows[i][source] for i in node.inputs]
            own[source] = tuple(up(joined_constant(column, join) * L) for column in zip(*matrix, strict=True))
            # Seen from the source: the norm of M where rows are stacked, that of the one row where they are added.
            relative = up(_norm(matrix) * L) if join is Join.ROOT_OF_SQUARES else _norm([own[source]])
            best = min(best, up(relative * constants[source]))
            for outer, before in rows[source].items():
                through = tuple(up(relative * entry) for entry in before)
                own[outer] = min(own.get(outer, through), through, key=sum)
        if value in parts:
            source, position, count = parts[value]
            own[source] = tuple(float(k == position) for k in range(count))
        constants.append(best)
        rows.append(own)
    return tuple(constants)


def _norm(matrix: Sequence[_Row]) -> float:
    return largest_singular_value(torch.tensor(matrix, dtype=torch.float64))


def _disjoint_parts(graph: Graph) -> dict[int, tuple[int, int, int]]:
    """Return, for parts of a value of which no two share an entry: the value, the part's number, and how many."""
    by_source: dict[int, dict[int, Tensor]] = {}
    for value, node in enumerate(graph.operations, start=1):
        if node.entries is not None:
            by_source.setdefault(node.inputs[0], {})[value] = node.entries
    found: dict[int, tuple[int, int, int]] = {}
    for source, parts in by_source.items():
        entries = torch.cat(list(parts.values())).sort().values
        if len(parts) > 1 and bool((entries[1:] > entries[:-1]).all()):
            found |= {part: (source, position, len(parts)) for position, part in enumerate(parts)}
    return found
