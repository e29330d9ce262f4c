"""One thread for all work with networks, and a queue with an end: requests are served in turn.

A network is never used by two threads at once. Who comes when all places are taken is told so, at once.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from bronet.errors import BronetError

PLACES = 8
"""Requests that are worked on or wait."""


class BusyError(BronetError):
    """All places of the queue are taken."""


class GivenUpError(Exception):
    """Nobody waits for the answer any more; raised inside the work."""


class Ticket:
    """How far a piece of work is, seen from outside, and a way to give it up."""

    def __init__(self) -> None:
        self.share = 0.0
        self._given_up = threading.Event()

    def report(self, done: int, total: int) -> None:
        """Note how far the work is; raise `GivenUpError` if nobody waits for it. Called by the work."""
        if self._given_up.is_set():
            raise GivenUpError
        self.share = done / total

    def give_up(self) -> None:
        """Let the work end at its next report, or never begin."""
        self._given_up.set()


Work = Callable[[Ticket], Any]


@dataclass(frozen=True)
class Question:
    """A piece of work in the queue."""

    ticket: Ticket
    answer: "Future[Any]"


class Worker:
    """Does one piece of work after the other."""

    def __init__(self, places: int = PLACES) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bronet-web")
        self._places = threading.BoundedSemaphore(places)
        self._lock = threading.Lock()
        self._open: set[Ticket] = set()
        self._stopped = False

    def ask(self, work: Work) -> Question:
        """Put a piece of work at the end of the queue; raise `BusyError` if there is no place."""
        if self._stopped:
            raise BusyError("the server is stopping")
        if not self._places.acquire(blocking=False):
            raise BusyError("too many requests are waiting; try again in a moment")
        ticket = Ticket()
        with self._lock:
            self._open.add(ticket)

        def begun() -> Any:
            ticket.report(0, 1)
            return work(ticket)

        answer = self._thread.submit(begun)
        answer.add_done_callback(lambda _: self._leave(ticket))
        return Question(ticket, answer)

    def stop(self) -> None:
        """Give up all work and take no more; the piece in progress ends at its next report."""
        self._stopped = True
        with self._lock:
            waiting = list(self._open)
        for ticket in waiting:
            ticket.give_up()
        self._thread.shutdown(wait=False)

    def _leave(self, ticket: Ticket) -> None:
        with self._lock:
            self._open.discard(ticket)
        self._places.release()
