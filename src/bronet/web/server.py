"""A server that waits neither for slow clients nor for ever, and answers to its own page only.

A page on this machine can be reached by any web site that is open in the same browser. So a request must name this
machine as its host (a foreign name that points here is refused) and, if it comes from a page, come from this one.

A body is read whole before the application sees the request: within a time limit, and all bodies together within a
limit of memory. uvicorn has a limit for idle connections after an answer. What it lacks is here: limits for connections
that never ask, for readers that never read, for how many there are, and for those that are still open when the server
ends.
"""

import asyncio
import contextlib
import re
import socket

import uvicorn
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from bronet.web import is_local
from bronet.web.app import PROTECTION, Worker, build_app, refusal
from bronet.web.served import Gallery

REQUEST_SECONDS = 10.0
"""Time that a connection has for the head of its next request."""
READ_SECONDS = 20.0
"""Time that a client has to make room for the rest of its answer."""
MAX_CONNECTIONS = 200
"""Connections at a time; more would meet the limit of open files of the process."""
SECONDS_TO_END = 0.5
"""Time that open connections have after Ctrl-C."""
MAX_BYTES = 8 * 2**20
"""Bytes of a body at most."""
BODY_SECONDS = 20.0
"""Time that a sender has for a whole body."""
MAX_EXPECTED = 4 * MAX_BYTES
"""Bytes of all large bodies that are being read at the same time, as announced."""
SMALL = 1 << 16
"""Bytes up to which a body is not counted: the server buffers as much of every connection anyway."""
DRAIN_SECONDS = 5.0
"""Time that the sender of a refused body has to finish, so that it can read the answer."""


class Guard:
    """Refuses foreign, endless, slow and too large requests."""

    def __init__(self, app: ASGIApp, *, local: bool) -> None:
        self._app, self._local = app, local
        self._expected = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its whole body, or answer it with one line."""
        try:
            body = await self._read(self._length(scope), Request(scope, receive))
        except ClientDisconnect:
            return  # nobody is there to be answered
        except HTTPException as refused:
            await _refuse(refused, scope, receive, send)
        else:
            await self._app(scope, _replayed(body, receive), send)

    def _length(self, scope: Scope) -> int:
        """Return the length of the body; raise `HTTPException` if the head refuses the request."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._local and not is_local(re.sub(r":\d+$", "", host)):
            raise HTTPException(403, "this page answers to 127.0.0.1 and localhost only")
        own = f"{scope['scheme']}://{host}"
        if headers.get("origin", own) != own:
            raise HTTPException(403, "this page answers to itself only, not to other web sites")
        if scope["method"] in ("GET", "HEAD"):
            return 0
        length = headers.get("content-length", "")
        if "transfer-encoding" in headers or not length.isdecimal():
            raise HTTPException(411, "a request must say how long it is")
        if int(length) > MAX_BYTES:
            raise HTTPException(413, f"this file is too large: at most {MAX_BYTES // 2**20} MB")
        return int(length)

    async def _read(self, length: int, request: Request) -> bytes:
        """Return the whole body, of at most this length."""
        counted = length if length > SMALL else 0
        if self._expected + counted > MAX_EXPECTED:
            raise HTTPException(503, "too many files are being sent; try again in a moment")
        self._expected += counted
        try:
            async with asyncio.timeout(BODY_SECONDS):
                return await request.body()
        except TimeoutError:
            raise HTTPException(408, f"a request must be sent within {BODY_SECONDS:.0f} seconds") from None
        finally:
            self._expected -= counted


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return what gives the body first, and then waits for the sender to leave."""
    unread = [body]

    async def replay() -> Message:
        return {"type": "http.request", "body": unread.pop(), "more_body": False} if unread else await receive()

    return replay


async def _refuse(refused: HTTPException, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer, then throw away what is still being sent.

    A connection that is closed with unread bytes is reset, and the sender might never see the answer.
    """

    async def send_unfinished(message: Message) -> None:
        await send({**message, "more_body": True} if message["type"] == "http.response.body" else message)

    response = refusal(refused.status_code, refused.detail)
    response.headers["connection"] = "close"
    await response(scope, receive, send_unfinished)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while (await receive()).get("more_body", False):
                pass
    await send({"type": "http.response.body", "body": b"", "more_body": False})


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


class Server(uvicorn.Server):
    """Serves until the process is told to end; then it gives up all work, and soon cuts what is still open."""

    def __init__(self, gallery: Gallery, *, local: bool) -> None:
        self.worker = Worker()
        config = uvicorn.Config(
            Guard(build_app(gallery, self.worker), local=local),
            http=Connection,
            ws="none",
            lifespan="off",
            log_level="error",  # a stranger's mistake is answered, not logged
            access_log=False,
            server_header=False,
            headers=PROTECTION,
        )
        super().__init__(config)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End within a moment."""
        self.worker.stop()
        cut = asyncio.get_running_loop().call_later(SECONDS_TO_END, self._cut)
        await super().shutdown(sockets)
        cut.cancel()

    def _cut(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()
