"""Images dealt out over the processes of torchrun, on one machine or several: who takes which, and how results meet.

The processes do not talk to one another. Each writes the results of a batch as one file into a hidden folder of the
run, which all must see, and the first process collects them. A process that is killed loses its batch at most: whoever
comes next, in whatever number, computes only what is missing.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bronet.__about__ import __version__
from bronet.errors import BronetError
from bronet.files import TEMPORARY_SUFFIX, held, read_object, replace_text
from bronet.records import as_plain, read_record

T = TypeVar("T")
S = TypeVar("S", bound="Share")
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Share:
    """Which process this is, of how many, and how often torchrun had to start them again."""

    rank: int = 0
    world: int = 1
    restarts: int = 0

    @classmethod
    def of_this_process(cls: type[S]) -> S:
        """Return what torchrun says of this process; one alone without it."""
        names = {"RANK": 0, "WORLD_SIZE": 1, "TORCHELASTIC_RESTART_COUNT": 0}
        return cls(*(int(os.environ.get(name, default)) for name, default in names.items()))

    @property
    def is_main(self) -> bool:
        """Whether this process writes and speaks."""
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
            try:
                shutil.rmtree(self.folder)
                for path in self.folder.parent.glob(f"{self.folder.stem}.*{TEMPORARY_SUFFIX}"):  # of killed writes
                    path.unlink()
            except OSError as error:
                raise BronetError(f"could not remove {self.folder} ({error}); remove it by hand") from None

    def results(
        self, kind: type[T], firsts: Iterable[int], batch_size: int, compute: Callable[[int], T]
    ) -> Iterator[list[T]]:
        """Compute this process's batches, each named by its first image, unless they are there.

        The first process gets the records of all, those that are new after each batch of its own and as others bring
        them; the other processes end in `ShareDone`.
        """
        paths = {first: self.folder / f"{self.key}-{first}.json" for first in firsts}
        mine = [first for first in paths if self.share.takes(first, batch_size)]
        while paths and (mine or self.share.is_main):
            if mine and (first := mine.pop(0)) in paths and not paths[first].exists():
                replace_text(paths[first], json.dumps(as_plain(compute(first))))
            if not self.share.is_main:
                continue
            there = [first for first, path in paths.items() if path.exists()]
            found = [(path := paths.pop(first), read_object(path)) for first in there]
            if found:
                yield [read_record(kind, content, "part", file=path) for path, content in found]
            elif not mine:
                time.sleep(POLL_SECONDS)
        if not self.share.is_main:
            raise ShareDone
