"""What stands before every request: whose page it is, how much may be sent and for how long, and what a browser may do.

A page on this machine can be reached by any web site that is open in the same browser. So a request must name this
machine as its host (a foreign name that points here is refused) and, if it comes from a page, come from this one.

A body is read whole before the application sees the request: within a time limit, and all bodies together within a
limit of memory.
"""

import asyncio
import contextlib

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bronet.web.server import is_local

READING = frozenset({"GET", "HEAD"})
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
        if self._local and not is_local(_without_port(host)):
            raise HTTPException(403, "this page answers to 127.0.0.1 and localhost only")
        own = f"{scope['scheme']}://{host}"
        if headers.get("origin", own) != own:
            raise HTTPException(403, "this page answers to itself only, not to other web sites")
        if scope["method"] in READING:
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


def refusal(status: int, message: str) -> JSONResponse:
    """Return an answer of one line that says what is wrong; where there was no place, it says when to try again."""
    return JSONResponse({"message": message}, status, {"retry-after": "1"} if status == 503 else {})


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


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host
