"""`check`: can this model be certified, what is its Lipschitz bound, and which layer spoils it?

Of any module. A certifiable model answers with its proof, a plain chain with the product of its layers' bounds, any
other model with the bounds of the layers that have one.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.foreign.bounds import bound_of
from bronet.foreign.steps import Step, is_single, kind_of, output_shape, read_steps, require_module
from bronet.layers.base import checked_shape
from bronet.layers.proving import proved_chain
from bronet.models import CertifiableModel
from bronet.proof.rounding import up
from bronet.wording import bound_text

_WIDTH = 110
_NEUTRAL = 1 + 1e-6


class Verdict(StrEnum):
    """What can be said of a model as a whole."""

    CERTIFIABLE = "certifiable"
    BOUNDED = "bounded"
    UNBOUNDED = "not bounded"


@dataclass(frozen=True)
class LayerCheck:
    """A layer: its path, its type, the shape behind it, its bound (None: none is known) and how that is known."""

    path: str
    kind: str
    output_shape: tuple[int, ...]
    bound: float | None
    reason: str


@dataclass(frozen=True)
class Checked:
    """What `check` found; prints as a table.

    `lipschitz` bounds the constant of logits with respect to the input, None where nothing does. `explanation` is one
    sentence for people.
    """

    layers: tuple[LayerCheck, ...]
    lipschitz: float | None
    verdict: Verdict
    explanation: str

    @property
    def certifiable(self) -> bool:
        """Whether `bronet.certified_radius` takes the model as it is."""
        return self.verdict is Verdict.CERTIFIABLE

    @property
    def spoiler(self) -> LayerCheck | None:
        """The layer that spoils the bound: the first without one, else the largest if it exceeds one."""
        without = [layer for layer in self.layers if layer.bound is None]
        if without:
            return without[0]
        largest = max(self.layers, key=lambda layer: layer.bound or 0.0, default=None)
        return largest if largest is not None and (largest.bound or 0.0) > _NEUTRAL else None

    def __rich__(self) -> Table:
        table = Table(title=Text(f"{self.verdict}: {self.explanation}"), title_justify="left", box=None, pad_edge=False)
        for name in ("layer", "kind", "output"):
            table.add_column(name, overflow="fold")
        table.add_column("bound", justify="right", no_wrap=True)
        table.add_column("reason", overflow="fold")
        for layer in self.layers:
            shape = " x ".join(str(size) for size in layer.output_shape)
            bold = "bold" if layer is self.spoiler else ""
            cells = (layer.path, layer.kind, shape, _number(layer.bound), layer.reason)
            table.add_row(*(Text(cell) for cell in cells), style=bold)
        table.add_row("total", "", "", _number(self.lipschitz), "product" if self.lipschitz else "", style="bold")
        return table

    def __str__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=_WIDTH, no_color=True).print(self)
        return text.getvalue()


def check(model: nn.Module, input_shape: tuple[int, ...] | None = None) -> Checked:
    """Return the Lipschitz bound of every layer and of the whole, for images of `input_shape`, in evaluation mode.

    Guaranteed: the numbers are upper bounds in real arithmetic, for the weights as they are. Only where the verdict is
    "certifiable" does a certificate follow that counts the rounding of the forward pass as well. A certifiable model
    knows its shape; every other needs `input_shape`, (channel, height, width) without the batch.
    """
    require_module(model)
    if input_shape is not None:
        input_shape = checked_shape(input_shape)
    with _evaluating(model):
        if isinstance(model, CertifiableModel):
            shape = model.image_shape if input_shape is None else input_shape
            try:
                model.require_faithful()
            except BronetError as error:
                return Checked(_leaves(model, shape), None, Verdict.UNBOUNDED, str(error))
            return _certifiable(model, shape)
        if input_shape is None:
            raise BronetError(f"input_shape must be given to check a {type(model).__name__}, got None")
        try:
            steps = read_steps(model)
        except BronetError as error:
            explanation = f"the forward is no chain; {error}"
            return Checked(_leaves(model, input_shape), None, Verdict.UNBOUNDED, explanation)
        return _chain(steps, input_shape)


def _certifiable(model: CertifiableModel, shape: tuple[int, ...]) -> Checked:
    named = dict(model.chain())
    chain = proved_chain(model.chain(), model.head, shape)
    layers = [
        LayerCheck(name, type(named[name]).__name__, proved.output_shape, proved.lipschitz, proved.remark or "proved")
        for name, proved in chain.layers
    ]
    head = chain.head.logits
    layers.append(LayerCheck("head", type(model.head).__name__, head.output_shape, head.lipschitz, "proved"))
    total = _product(layers)
    return Checked(tuple(layers), total, Verdict.CERTIFIABLE, "every layer is proved, with its rounding")


def _chain(steps: Sequence[Step], shape: tuple[int, ...]) -> Checked:
    layers = []
    for step in steps:
        before, shape = shape, output_shape(step, shape)  # first, as a forward may be what makes the weights
        bound = bound_of(step.module, before)
        layers.append(LayerCheck(step.path, step.kind, shape, bound.value, bound.reason))
    total = _product(layers)
    if total is None:
        without = next(layer for layer in layers if layer.bound is None)
        explanation = f"no bound is known for {without.path} ({without.kind})"
        return Checked(tuple(layers), None, Verdict.UNBOUNDED, explanation)
    explanation = "in real arithmetic only; bronet.convert makes a network that can be certified"
    return Checked(tuple(layers), total, Verdict.BOUNDED, explanation)


@torch.no_grad()
def _leaves(model: nn.Module, shape: tuple[int, ...]) -> tuple[LayerCheck, ...]:
    """Return the bounds of all single modules that a forward pass calls, in the order of the calls."""
    calls: list[tuple[nn.Module, tuple[int, ...], tuple[int, ...]]] = []

    def record(module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        if inputs and isinstance(inputs[0], Tensor):
            behind = tuple(output.shape[1:]) if isinstance(output, Tensor) else ()
            calls.append((module, tuple(inputs[0].shape[1:]), behind))

    paths = dict(_singles(model, ""))
    hooks = [module.register_forward_hook(record) for module in paths]
    try:
        output_shape(Step(type(model).__name__, model), shape)
    finally:
        for hook in hooks:
            hook.remove()
    found = []
    for module, before, behind in calls:
        bound = bound_of(module, before)
        found.append(LayerCheck(paths[module], kind_of(module).__name__, behind, bound.value, bound.reason))
    return tuple(found)


def _singles(module: nn.Module, path: str) -> Iterator[tuple[nn.Module, str]]:
    """Yield the parts of a model that are one step each, or have no parts, with their paths."""
    parts = list(module.named_children())
    if is_single(module) or not parts:
        yield module, path
        return
    for name, part in parts:
        yield from _singles(part, f"{path}.{name}" if path else name)


def _product(layers: Sequence[LayerCheck]) -> float | None:
    """Return the product of all bounds, None if one is missing."""
    total = 1.0
    for layer in layers:
        if layer.bound is None:
            return None
        total = up(total * layer.bound)
    return total


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Put every part of a model into evaluation mode while inside, and back into its own mode after."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _number(bound: float | None) -> str:
    return "none" if bound is None else bound_text(bound)
