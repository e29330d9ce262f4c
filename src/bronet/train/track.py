"""TensorBoard, if wanted: scalars of every epoch, a histogram of the margins, and a few training pictures.

Needs tensorboard (the extra `track`). The log file of a run is written with or without it, and holds every scalar.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from bronet.errors import BronetError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

PICTURES = 16


class Tracker:
    """What is told about an epoch. This one tells nobody."""

    wants_batch = False

    def epoch(self, number: int, entry: Mapping[str, object]) -> None:
        """Tell the numbers of a finished epoch."""

    def batch(self, number: int, pixels: Float[Tensor, "b c h w"], margins: Float[Tensor, " b"]) -> None:
        """Tell the last batch of an epoch: its pictures, and the margins of its images."""

    def close(self) -> None:
        """Write what is still to be written."""


class TensorBoard(Tracker):
    """Writes event files below `folder`."""

    wants_batch = True

    def __init__(self, folder: Path) -> None:
        self.writer = _writer(folder)

    def epoch(self, number: int, entry: Mapping[str, object]) -> None:
        for key, value in entry.items():
            if isinstance(value, int | float) and key != "epoch":
                self.writer.add_scalar(key, value, number)

    def batch(self, number: int, pixels: Float[Tensor, "b c h w"], margins: Float[Tensor, " b"]) -> None:
        self.writer.add_histogram("margin", margins.float(), number)
        self.writer.add_images("images", pixels[:PICTURES], number)

    def close(self) -> None:
        self.writer.close()


def _writer(folder: Path) -> "SummaryWriter":
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of packages behind it
            from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise BronetError("--track needs tensorboard; install it with: pip install 'bronet[track]'") from None
    return SummaryWriter(str(folder))
