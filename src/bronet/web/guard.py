"""What stands before every request: whose page it is, how much may be sent, and what a browser may do with the answer.

A page on this machine can be reached by any web site that is open in the same browser. So a request must name this
machine as its host (a foreign name that points here is refused) and, if it comes from a page, come from this one.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

from bronet.web.local import is_local

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

READING = frozenset({"GET", "HEAD"})


class Guard:
    """Refuses foreign, endless and too large requests, and sends the same protective headers with every answer."""

    def __init__(self, app: App, *, local: bool, most_bytes: int, headers: dict[str, str]) -> None:
        self._app, self._local, self._most_bytes, self._headers = app, local, most_bytes, headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it with one line."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope))
        await (self._app if refusal is None else refusal)(scope, receive, send_guarded)

    def _refusal(self, method: str, headers: Headers) -> JSONResponse | None:
        host = headers.get("host", "")
        if self._local and not is_local(_name(host)):
            return _refused(403, "this page answers to 127.0.0.1 and localhost only")
        if headers.get("origin", f"//{host}").partition("//")[2] != host:
            return _refused(403, "this page answers to itself only, not to other web sites")
        if method in READING:
            return None
        length = headers.get("content-length", "")
        if "transfer-encoding" in headers or not length.isdecimal():
            return _refused(411, "a request must say how long it is")
        if int(length) > self._most_bytes:
            return _refused(413, f"this file is too large: at most {self._most_bytes // 2**20} MB")
        return None


def _name(host: str) -> str:
    """Return the host without its port."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


def _refused(status: int, message: str) -> JSONResponse:
    # The body of a refused request is not read, so the connection cannot be used again.
    return JSONResponse({"message": message}, status_code=status, headers={"connection": "close"})
