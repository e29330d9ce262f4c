"""One thread for all work with networks, and a queue with an end: questions are answered in turn.

A network is never used by two threads at once. Who comes when all places are taken is told so, at once. Who leaves, or
a server that stops, gives a question up: whoever waits for the answer goes on at once, and the work ends at its next
report.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from bronet.errors import BronetError

PLACES = 8
"""Questions that are worked on or wait."""


class BusyError(BronetError):
    """There is no place in the queue, or no server any more."""


class GivenUpError(Exception):
    """Nobody waits for the answer any more; raised inside the work."""


class Question:
    """A piece of work in the queue: how far it is, its answer, and a way to give it up."""

    def __init__(self) -> None:
        self.share = 0.0
        self.answer: Future[Any] = Future()

    def report(self, done: int, total: int) -> None:
        """Note how far the work is; raise `GivenUpError` if nobody waits for it. Called by the work."""
        if self.answer.cancelled():
            raise GivenUpError
        self.share = done / total

    def give_up(self) -> None:
        """Let the work end at its next report, or never begin. Does nothing once there is an answer."""
        self.answer.cancel()

    def done(self) -> "asyncio.Future[Any]":
        """Return a future of this event loop that is done with the answer; for waiting, the answer is `result`."""
        waiting = asyncio.wrap_future(self.answer)
        # Whoever left does not look at the answer, and asyncio would log an error that nobody saw.
        waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
        return waiting

    def result(self) -> Any:
        """Return the answer, once there is one, or raise what the work raised."""
        if self.answer.cancelled():
            raise BusyError("the server is stopping")
        return self.answer.result()

    def work_out(self, work: "Work") -> None:
        """Do the work, unless it was given up, and keep what it returns or raises."""
        try:
            self.report(0, 1)
            answer = work(self)
        except GivenUpError:
            return
        except Exception as error:
            # False if it was given up in this very moment.
            if self.answer.set_running_or_notify_cancel():
                self.answer.set_exception(error)
        else:
            if self.answer.set_running_or_notify_cancel():
                self.answer.set_result(answer)


Work = Callable[[Question], Any]


class Worker:
    """Does one piece of work after the other."""

    def __init__(self, places: int = PLACES) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bronet-web")
        self._places = threading.BoundedSemaphore(places)
        self._lock = threading.Lock()
        self._open: set[Question] = set()
        self._stopped = False

    def ask(self, work: Work) -> Question:
        """Put a piece of work at the end of the queue; raise `BusyError` if there is no place."""
        question = Question()
        with self._lock:
            if self._stopped:
                raise BusyError("the server is stopping")
            if not self._places.acquire(blocking=False):
                raise BusyError("too many requests are waiting; try again in a moment")
            self._open.add(question)
            self._thread.submit(self._work_out, question, work)
        return question

    async def answer(self, work: Work) -> Any:
        """Return what a piece of work returns, when it is its turn."""
        question = self.ask(work)
        await asyncio.wait({question.done()})
        return question.result()

    def stop(self) -> None:
        """Give up all work and take no more; the piece in progress ends at its next report."""
        with self._lock:
            self._stopped = True
            waiting = list(self._open)
        for question in waiting:
            question.give_up()
        self._thread.shutdown(wait=False)

    def _work_out(self, question: Question, work: Work) -> None:
        try:
            question.work_out(work)
        finally:
            with self._lock:
                self._open.discard(question)
            self._places.release()
