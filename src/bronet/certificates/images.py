"""Certificates of images in memory: any model, any images that torch can read, one row for each.

The rows are those that `bronet certify` writes, made by the same code: the same weights and pixels give the same bits.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from bronet.certificates.run import as_recorded, certify_pixels, images_at_once, naive_gap_lipschitz
from bronet.data import ImageSet, batches_of
from bronet.data.sources import Batches
from bronet.errors import BronetError
from bronet.files import replace_text
from bronet.graph.model import CertifiableModel
from bronet.graph.network import prove
from bronet.graph.trace import unwrapped
from bronet.layers import frozen
from bronet.layers.base import IMAGE_AXES
from bronet.recipe.schema import parse_budget
from bronet.records import rows_text
from bronet.run.certificate import Row, certified_accuracy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN_ROWS = 10
"""Of the table in a notebook."""
OF_LABELS = frozenset({"label", "correct"})
"""Columns that mean nothing where the images have no labels."""


def certified_radius(model: nn.Module, images: Any, *, batch_size: int | None = None) -> Float[Tensor, " ..."]:
    """Return the certified l2 radius of the predicted class of every image, in pixel space [0, 1]: a proof.

    Guaranteed: the float64 network (`prove(model, shape).logits`) predicts the same class at every point closer than
    the radius. Ties get 0. For many calls, keep `prove(model, shape)` and use its `certify`.

    Args:
        model: any module whose forward `bronet.check` can follow; it is proved in evaluation mode.
        images: a batch (batch, channel, height, width) or one image without a batch, or vectors, as a tensor or a NumPy
            array; of one image the result has no dimension. Or a data set or a loader of torch, which may give labels
            too; the radii come in its order.
        batch_size: images that are computed at once, by default as many as suit the device.
    """
    model = unwrapped(model)
    source, is_single = _source(model, images)
    network, radii = None, list[Tensor]()
    for pixels, _ in _batches(model, source, batch_size):
        network = network or prove(model, tuple(pixels.shape[1:]))
        radii.append(network.certify(pixels).radius)
    radius = torch.cat(radii) if radii else torch.zeros(0, dtype=torch.float64)
    return radius[0] if is_single else radius


def certify(model: nn.Module, images: Any, labels: Any = None, *, batch_size: int | None = None) -> "Certificates":
    """Return what is proved of every image, in order, as the rows that `bronet certify` writes.

    Guaranteed: of the radius of every row what `certified_radius` guarantees. It is written down a little smaller than
    it was proved, so that another machine can prove all of it again.

    Args:
        model: any module whose forward `bronet.check` can follow; it is proved in evaluation mode, and left as it was.
        images: as for `certified_radius`; data sets and loaders may bring labels.
        labels: of the images, where those bring none. Without any, nothing is said of accuracy.
        batch_size: images that are computed at once, by default as many as suit the device.
    """
    model = unwrapped(model)
    source, _ = _source(model, images)
    files, classes = (source.files, source.classes) if isinstance(source, ImageSet) else ((), ())
    given = None if labels is None else torch.as_tensor(labels).flatten()
    rows, network, is_labelled = list[Row](), None, True
    with frozen(model):
        for pixels, brought in _batches(model, source, batch_size):
            if network is None:
                network = prove(model, tuple(pixels.shape[1:]))
                gap = naive_gap_lipschitz(model, network)
            if given is not None and brought is not None:
                raise BronetError("labels must be left out where the images bring their own")
            first, end = len(rows), len(rows) + len(pixels)
            own = brought if given is None else given[first:end]
            is_labelled = own is not None
            checked = None if own is None else _checked_labels(own, pixels, len(gap))
            index = torch.arange(first, end)
            rows += certify_pixels(model, network, pixels, checked, index=index, gap=gap, files=files).rows
    if network is None:
        raise BronetError("images must be at least one, got none")
    if given is not None and len(given) != len(rows):
        raise BronetError(f"labels must be one for each of the {len(rows)} images, got {len(given)}")
    return Certificates(
        rows=as_recorded(rows),
        lipschitz=network.lipschitz,
        classes=classes or (model.classes if isinstance(model, CertifiableModel) else ()),
        is_labelled=is_labelled,
    )


@dataclass(frozen=True, repr=False)
class Certificates:
    """What is proved of images: a row for each, in their order.

    `lipschitz` bounds the constant of all before the last operation. Where images have no labels, `is_labelled` is
    false, and the label of a row is its prediction. In a notebook this is a table.
    """

    rows: tuple[Row, ...]
    lipschitz: float
    classes: tuple[str, ...] = ()
    is_labelled: bool = True

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"Certificates({self._summary()})"

    @property
    def radius(self) -> Float[Tensor, " n"]:
        """The certified radius of every image, as it is written down."""
        return torch.tensor([row.radius for row in self.rows], dtype=torch.float64)

    @property
    def prediction(self) -> Tensor:
        """The class that the float64 network gives every image."""
        return torch.tensor([row.prediction for row in self.rows])

    @property
    def columns(self) -> dict[str, list[Any]]:
        """The rows by column; label and correct only where there are labels, file only where there are files."""
        columns = {field.name: [getattr(row, field.name) for row in self.rows] for field in fields(Row)}
        absent = {*(() if self.is_labelled else OF_LABELS), *(() if any(columns["file"]) else ("file",))}
        return {name: column for name, column in columns.items() if name not in absent}

    def accuracy(self, eps: float | str = 0.0) -> float:
        """Return the share of images that are correct and certified at eps, a number or a text such as "36/255".

        At 0 that is the share of correct images with any radius; `clean_accuracy` counts ties, too.
        """
        self._require_labels()
        value = parse_budget(eps, name="eps") if isinstance(eps, str) else eps
        if not 0 <= value < math.inf:
            raise BronetError(f"eps must be a distance of at least 0, got {eps}")
        return certified_accuracy(self.rows, value)

    @property
    def clean_accuracy(self) -> float:
        """The share of correct images."""
        self._require_labels()
        return sum(row.correct for row in self.rows) / len(self.rows)

    def plot(self, eps: Sequence[str] = ()) -> "Figure":
        """Return a figure of certified accuracy over the radius, with a mark at each eps ("36/255", ...)."""
        from bronet.report.figures import draw_curve

        self._require_labels()
        return draw_curve({"certified": self.rows}, tuple(eps))

    def to_csv(self, path: Path | str) -> None:
        """Write the rows as `certificate.csv` has them; columns that mean nothing are left out."""
        replace_text(Path(path), rows_text(Row, self.rows, list(self.columns)))

    def to_pandas(self) -> Any:
        """Return the rows as a `pandas.DataFrame`, where pandas is installed."""
        try:
            import pandas
        except ImportError:
            raise BronetError("to_pandas needs the package pandas; install it with: pip install pandas") from None
        return pandas.DataFrame(self.columns).set_index("index")

    def _repr_html_(self) -> str:
        """Return the first rows as a table."""
        columns = self.columns
        lines = [list(columns), *zip(*(column[:SHOWN_ROWS] for column in columns.values()), strict=True)]
        cells = ([escape(self._cell(*cell)) for cell in zip(columns, line, strict=True)] for line in lines)
        table = "".join(f"<tr><td>{'</td><td>'.join(line)}</td></tr>" for line in cells)
        return f"<p>{escape(self._summary())}</p><table>{table}</table>"

    def _cell(self, column: str, value: Any) -> str:
        if column in ("label", "prediction") and isinstance(value, int) and value < len(self.classes):
            return self.classes[value]
        return f"{value:.4f}" if isinstance(value, float) else str(value)

    def _summary(self) -> str:
        accuracy = f", {self.clean_accuracy:.1%} correct" if self.is_labelled else ""
        return f"{len(self.rows):,} images{accuracy}, median radius {float(self.radius.median()):.4f}"

    def _require_labels(self) -> None:
        if not self.is_labelled:
            raise BronetError("images must have labels to count accuracy; give certify(model, images, labels)")


def _checked_labels(labels: Tensor, pixels: Tensor, classes: int) -> Tensor:
    """Return the labels of a batch where it lies, or raise where they are no classes of the network or too few."""
    if len(labels) != len(pixels) or labels.ndim != 1:
        raise BronetError(
            f"labels must be one for each image, got shape {tuple(labels.shape)} for {len(pixels)} images"
        )
    if labels.is_floating_point() or not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        got = labels.dtype if labels.is_floating_point() else f"{int(labels.min())} to {int(labels.max())}"
        raise BronetError(f"labels must be whole numbers from 0 to {classes - 1}, got {got}")
    return labels.to(pixels.device)


def _batches(model: nn.Module, images: Any, batch_size: int | None) -> Batches:
    """Yield images where the model lies, and their labels, if they have any, in the number to compute at once."""
    home = next((t.device for t in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    size = images_at_once(home, batch_size)
    for pixels, *labels in _regrouped(batches_of(images, batch_size=size), size):
        if not 0 <= float(pixels.amin()) <= float(pixels.amax()) <= 1:
            warnings.warn("images lie outside [0, 1], where radii mean nothing; divide bytes by 255", stacklevel=3)
        yield pixels.to(home), labels[0] if labels else None


def _regrouped(batches: Batches, size: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield the images of batches so many at once, so that no result depends on how a loader cuts them."""
    kept: tuple[Tensor, ...] = ()
    for pixels, labels in batches:
        batch = (pixels,) if labels is None else (pixels, labels)
        if kept and len(kept) != len(batch):
            raise BronetError("labels must come with every batch of images or with none")
        kept = tuple(map(torch.cat, zip(kept, batch, strict=True))) if kept else batch
        while len(kept[0]) > size:
            yield tuple(part[:size] for part in kept)
            kept = tuple(part[size:] for part in kept)
    if kept and len(kept[0]):
        yield kept


def _source(model: nn.Module, images: Any) -> tuple[Any, bool]:
    """Return images as `batches_of` takes them, and whether they were one image without a batch."""
    if isinstance(images, (Dataset, DataLoader)):
        return images, False
    try:
        batch = torch.as_tensor(images)
    except (TypeError, ValueError, RuntimeError):
        raise BronetError(f"images must be a tensor or an array, got {type(images).__name__}") from None
    axes = (len(model.image_shape),) if isinstance(model, CertifiableModel) else (1, IMAGE_AXES)
    if batch.ndim not in {axis + 1 for axis in axes} | {*axes}:
        shape = tuple(batch.shape)
        raise BronetError(f"images must have shape (batch, channel, height, width) or that of one image, got {shape}")
    return (batch[None], True) if batch.ndim in axes else (batch, False)
