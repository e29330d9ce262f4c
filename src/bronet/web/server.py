"""Serve the page: a socket, a server that ends cleanly, and the address to open."""

import errno
import importlib.util
import socket
from typing import TYPE_CHECKING

from bronet.errors import BronetError

if TYPE_CHECKING:
    import uvicorn

    from bronet.web.served import Gallery
    from bronet.web.worker import Worker

PACKAGES = ("fastapi", "uvicorn")
SECONDS_TO_END = 5
"""Time that open connections have after Ctrl-C."""


def require_web() -> None:
    """Raise unless the optional packages are installed."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise BronetError(f"bronet serve needs {' and '.join(missing)}; pip install 'bronet[web]'")


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
            raise BronetError(
                f"--port must be free, got {port}, which is in use; choose another, or 0 for any"
            ) from None
        raise BronetError(f"cannot listen on {host} port {port}: {error.strerror}; choose another") from None


def address(listening: socket.socket, host: str) -> str:
    """Return what to open in a browser."""
    port = listening.getsockname()[1]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def make_server(gallery: "Gallery", worker: "Worker", *, local: bool) -> "uvicorn.Server":
    """Return a server that is ready to run; when it ends it gives up all work before it waits for connections."""
    import uvicorn

    from bronet.web.app import build_app

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            worker.stop()
            await super().shutdown(sockets)

    config = uvicorn.Config(
        build_app(gallery, worker, local=local),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=SECONDS_TO_END,
    )
    return Server(config)


def serve(gallery: "Gallery", listening: socket.socket, *, local: bool) -> None:
    """Serve until the process is told to end; then the attack in progress is given up and the signal passed on."""
    from bronet.web.worker import Worker

    worker = Worker()
    try:
        make_server(gallery, worker, local=local).run(sockets=[listening])
    finally:
        worker.stop()
