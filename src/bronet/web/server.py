"""Serve the page: a socket, one thread that works, and a server that neither waits for slow clients nor for ever.

uvicorn has a limit for idle connections after an answer. What it lacks is here: limits for connections that never ask,
for readers that never read, for how many there are, and for those that are still open when the server ends.
"""

import asyncio
import contextlib
import errno
import importlib.util
import ipaddress
import socket
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from bronet.errors import BronetError

if TYPE_CHECKING:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from bronet.web.served import Gallery

PACKAGES = ("fastapi", "uvicorn")
REQUEST_SECONDS = 10.0
"""Time that a connection has for the head of its next request."""
READ_SECONDS = 20.0
"""Time that a client has to make room for the rest of its answer."""
MAX_CONNECTIONS = 200
"""Connections at a time; more would meet the limit of open files of the process."""
SECONDS_TO_END = 0.5
"""Time that open connections have after Ctrl-C."""
PLACES = 8
"""Questions that are worked on or wait."""


def require_web() -> None:
    """Raise unless the optional packages are installed."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise BronetError(f"bronet serve needs {' and '.join(missing)}; pip install 'bronet[web]'")


def is_local(host: str) -> bool:
    """Whether a host, without its port, is a loopback address or localhost. No other name is: it may point anywhere."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    return host == "localhost"


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 takes any free one."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except socket.gaierror as error:
        raise BronetError(f"--host must be an address of this machine, got {host} ({error.strerror})") from None
    except OverflowError:
        raise BronetError(f"--port must satisfy 0 <= port <= 65535, got {port}") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise BronetError(f"--port must be free, got {port}, which is in use; choose another, or 0") from None
        raise BronetError(f"cannot listen on {host} port {port}: {error.strerror}; choose another") from None


def address(listening: socket.socket, host: str) -> str:
    """Return what to open in a browser."""
    port = listening.getsockname()[1]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


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
        if self.answer.done():
            raise GivenUpError
        self.share = done / total

    def give_up(self) -> None:
        """Let the work end at its next report, or never begin. Does nothing once there is an answer."""
        with contextlib.suppress(InvalidStateError):
            self.answer.set_exception(BusyError("the server is stopping"))


Work = Callable[[Question], Any]


class Worker:
    """One thread for all work with networks, and a queue with an end: questions are answered in turn.

    A network is never used by two threads at once. Who comes when all places are taken is told so, at once. Who leaves,
    or a server that stops, gives a question up: whoever waits for the answer goes on at once, and the work ends at its
    next report.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bronet-web")
        self._open: set[Question] = set()
        self._stopped = False

    def ask(self, work: Work) -> Question:
        """Put a piece of work at the end of the queue; raise `BusyError` if there is no place."""
        if self._stopped:
            raise BusyError("the server is stopping")
        if len(self._open) >= PLACES:
            raise BusyError("too many requests are waiting; try again in a moment")
        question = Question()
        self._open.add(question)
        self._thread.submit(self._work_out, question, work)
        return question

    def stop(self) -> None:
        """Give up all work and take no more; the piece in progress ends at its next report."""
        self._stopped = True
        for question in list(self._open):
            question.give_up()
        self._thread.shutdown(wait=False)

    def _work_out(self, question: Question, work: Work) -> None:
        # An answer that was given up takes no other.
        with contextlib.suppress(InvalidStateError):
            try:
                question.report(0, 1)
                question.answer.set_result(work(question))
            except Exception as error:
                question.answer.set_exception(error)
        self._open.discard(question)


def connection_class() -> "type[H11Protocol]":
    """Return uvicorn's HTTP connection with deadlines; a class made on demand, since uvicorn is an optional package."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Connection(H11Protocol):
        """A connection that is cut when its client asks nothing, or reads nothing, for too long."""

        _asking: asyncio.TimerHandle
        _reading: asyncio.TimerHandle | None = None

        @property
        def idle(self) -> bool:
            """Whether no request is being answered."""
            return self.cycle is None or self.cycle.response_complete

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait_for_request()
            if len(self.connections) > MAX_CONNECTIONS:
                idle = [other for other in self.connections if isinstance(other, Connection) and other.idle]
                min(idle, key=lambda other: other._asking.when()).transport.abort()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._asking.cancel()
            self._wait_for_request()

        def connection_lost(self, exc: Exception | None) -> None:
            self._asking.cancel()
            self.resume_writing()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._reading = self.loop.call_later(READ_SECONDS, self.transport.abort)

        def resume_writing(self) -> None:
            if self._reading is not None:
                self._reading.cancel()
            super().resume_writing()

        def _wait_for_request(self) -> None:
            self._asking = self.loop.call_later(REQUEST_SECONDS, self._cut_if_idle)

        def _cut_if_idle(self) -> None:
            if self.idle:
                self.transport.abort()

    return Connection


def make_server(gallery: "Gallery", worker: Worker, *, local: bool) -> "uvicorn.Server":
    """Return a server that is ready to run; when it ends it gives up all work, and soon cuts what is still open."""
    import uvicorn

    from bronet.web.app import build_app, protecting_headers

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            worker.stop()
            cut = asyncio.get_running_loop().call_later(SECONDS_TO_END, self._cut)
            await super().shutdown(sockets)
            cut.cancel()

        def _cut(self) -> None:
            for connection in list(self.server_state.connections):
                connection.transport.abort()

    config = uvicorn.Config(
        build_app(gallery, worker, local=local),
        http=connection_class(),
        ws="none",
        lifespan="off",
        log_level="error",  # a stranger's mistake is answered, not logged
        access_log=False,
        server_header=False,
        headers=protecting_headers(),
    )
    return Server(config)


def serve(gallery: "Gallery", listening: socket.socket, *, local: bool) -> None:
    """Serve until the process is told to end; then the attack in progress is given up and the signal passed on."""
    worker = Worker()
    try:
        make_server(gallery, worker, local=local).run(sockets=[listening])
    finally:
        worker.stop()
