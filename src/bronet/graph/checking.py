"""`check`: can this model be certified, what is its Lipschitz bound, and which operation spoils it?

Of any module. The model is read as a graph: every operation that the output depends on is listed with its bound.
"""

import html
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import nn

from bronet.graph.network import constants_of, shape_for
from bronet.graph.operations import Operation
from bronet.graph.reading import read
from bronet.graph.trace import UnreadableError, unwrapped
from bronet.wording import bound_text

_WIDTH = 110
_COLUMNS = ("layer", "kind", "output", "bound", "reason")
_NEUTRAL = 1 + 1e-6


class ModelVerdict(StrEnum):
    """What can be said of a model as a whole."""

    CERTIFIABLE = "certifiable"
    BOUNDED = "bounded"
    UNBOUNDED = "not bounded"


@dataclass(frozen=True)
class Checked:
    """What `check` found; prints as a table.

    Of each layer `path`, `kind`, `output_shape`, `bound` (None: none is known), `reason` and `place`, its line in the
    user's code. `lipschitz` bounds the constant of logits with respect to the input, None where nothing does.
    `explanation` is one sentence for people.
    """

    layers: tuple[Operation, ...]
    lipschitz: float | None
    verdict: ModelVerdict
    explanation: str

    @property
    def certifiable(self) -> bool:
        """Whether `bronet.certified_radius` takes the model as it is."""
        return self.verdict is ModelVerdict.CERTIFIABLE

    @property
    def spoiler(self) -> Operation | None:
        """The operation that spoils the bound: the first without one, else the largest if it exceeds one."""
        without = [layer for layer in self.layers if layer.bound is None]
        if without:
            return without[0]
        largest = max(self.layers, key=lambda layer: layer.bound or 0.0, default=None)
        return largest if largest is not None and (largest.bound or 0.0) > _NEUTRAL else None

    def _rows(self) -> Iterator[tuple[bool, tuple[str, ...]]]:
        """Yield the cells of each row, and whether it stands out: what spoils the bound, and the total."""
        for layer in self.layers:
            shape = " x ".join(map(str, layer.output_shape))
            cells = (layer.path, layer.kind, shape, _number(layer.bound), layer.reason, layer.place)
            yield layer is self.spoiler, cells
        reason = "from the image to the output" if self.lipschitz is not None else ""
        yield True, ("total", "", "", _number(self.lipschitz), reason, "")

    def __rich__(self) -> Table:
        table = Table(title=Text(f"{self.verdict}: {self.explanation}"), title_justify="left", box=None, pad_edge=False)
        for name in _COLUMNS:
            number = name == "bound"
            table.add_column(name, justify="right" if number else "left", no_wrap=number, overflow="fold")
        for is_bold, (*cells, _) in self._rows():
            table.add_row(*(Text(cell) for cell in cells), style="bold" if is_bold else "")
        return table

    def __str__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=_WIDTH, no_color=True).print(self)
        return text.getvalue()

    def _repr_html_(self) -> str:
        """Return the table for a notebook, each operation with its line."""
        rows = [f"<tr>{''.join(f'<th>{name}' for name in (*_COLUMNS, 'line'))}</tr>"]
        for is_bold, cells in self._rows():
            row = "".join(f"<td>{html.escape(cell)}" for cell in cells)
            rows.append(f"<tr{' style=font-weight:bold' if is_bold else ''}>{row}</tr>")
        caption = html.escape(f"{self.verdict}: {self.explanation}")
        return f"<table><caption>{caption}</caption>{''.join(rows)}</table>"


def check(model: nn.Module, input_shape: tuple[int, ...] | None = None) -> Checked:
    """Return the Lipschitz bound of every operation and of the whole, for images of `input_shape`, in evaluation mode.

    Guaranteed: the numbers are upper bounds in real arithmetic, for the weights as they are. Only where the verdict is
    "certifiable" does a certificate follow that counts the rounding of the forward pass as well. A network of this
    library knows its shape; every other needs `input_shape`, (channel, height, width) without the batch.
    """
    model = unwrapped(model)
    shape = shape_for(model, input_shape, "input_shape")
    try:
        graph = read(model, shape)
    except UnreadableError as error:
        return Checked((), None, ModelVerdict.UNBOUNDED, str(error))
    layers = graph.operations
    unknown = next((layer for layer in layers if layer.bound is None), None)
    if unknown is not None:
        return Checked(layers, None, ModelVerdict.UNBOUNDED, f"no bound is known for {unknown}: {unknown.reason}")
    total = constants_of(graph)[-1]
    rounded = next((layer for layer in layers if math.isinf(layer.proved.gain)), None)
    if rounded is not None:
        explanation = f"in real arithmetic only, as the rounding of {rounded} is not known"
        return Checked(layers, total, ModelVerdict.BOUNDED, explanation)
    note = f"; {graph.note}" if graph.note else ""
    return Checked(layers, total, ModelVerdict.CERTIFIABLE, f"every layer is proved, with its rounding{note}")


def _number(bound: float | None) -> str:
    return "none" if bound is None else bound_text(bound)
