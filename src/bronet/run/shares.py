"""Images dealt out over the processes of torchrun, on one machine or several: who takes which, and how results meet.

The processes do not talk to one another. Each writes the results of a batch as one file into a hidden folder of the
run, which all must see, and the first process collects them. A process that is killed loses its batch at most: whoever
comes next, in whatever number, computes only what is missing.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bronet.__about__ import __version__
from bronet.errors import BronetError
from bronet.files import TEMPORARY_SUFFIX, held, read_object, replace_text
from bronet.records import Place, as_plain, read_record

T = TypeVar("T")
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Share:
    """Which process this is, of how many, and how often torchrun had to start them again."""

    rank: int = 0
    world: int = 1
    restarts: int = 0

    @classmethod
    def of_this_process(cls) -> "Share":
        """Return what torchrun says of this process; one alone without it."""
        names = {"RANK": 0, "WORLD_SIZE": 1, "TORCHELASTIC_RESTART_COUNT": 0}
        return cls(*(int(os.environ.get(name, default)) for name, default in names.items()))

    @property
    def is_main(self) -> bool:
        """Whether this process collects, writes and speaks."""
        return self.rank == 0

    def takes(self, first: int, batch_size: int) -> bool:
        """Whether the batch that begins with the image `first` is this process's."""
        return first // batch_size % self.world == self.rank


ALONE = Share()


class ShareDone(Exception):  # noqa: N818 - not an error
    """This process has done its share; the first process collects, writes and speaks."""


class Parts:
    """Results of batches, each in a file until all are there.

    `about` is all that a result depends on: parts of anything else are never taken.
    """

    def __init__(self, rows: Path, about: Any, share: Share) -> None:
        self.share, self.folder = share, rows.with_name(f".{rows.stem}.parts")
        text = json.dumps([__version__, about], sort_keys=True)
        self.key = hashlib.sha256(text.encode()).hexdigest()[:16]

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Hold the parts against other commands in the first process, and remove them when all is written."""
        if not self.share.is_main:
            yield
            return
        with held(self.folder):
            yield
            self.remove()

    def wants(self, first: int, batch_size: int) -> bool:
        """Whether this process is to compute the batch that begins with the image `first`."""
        return self.share.takes(first, batch_size) and first not in self.there()

    def put(self, first: int, part: Any) -> None:
        """Write the result, a record, of the batch that begins with the image `first`."""
        replace_text(self._path(first), json.dumps(as_plain(part)))

    def there(self) -> set[int]:
        """Return the first images of the batches that are there."""
        return {int(path.stem.rpartition("-")[2]) for path in self.folder.glob(f"{self.key}-*.json")}

    def take(self, kind: type[T], first: int) -> T:
        """Return the result of a batch that is there."""
        path = self._path(first)
        return read_record(kind, read_object(path), Place("part", str(path)))

    def remove(self) -> None:
        """Remove all parts, also those that were given up, and what killed writes left beside them."""
        try:
            shutil.rmtree(self.folder)
            for path in self.folder.parent.glob(f"{self.folder.stem}.*{TEMPORARY_SUFFIX}"):
                path.unlink()
        except OSError as error:
            raise BronetError(f"could not remove {self.folder} ({error}); remove it by hand") from None

    def _path(self, first: int) -> Path:
        return self.folder / f"{self.key}-{first}.json"
