"""The page of `bronet serve`: choose an image, see what is proved of it, and attack it. Holds no maths.

The page needs the optional packages of `bronet[web]`. What is here does without them: it asks for them, and opens the
socket.
"""

import contextlib
import errno
import importlib.util
import ipaddress
import socket

from bronet.errors import BronetError


def require_web() -> None:
    """Raise unless the optional packages are installed."""
    missing = [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]
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
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise BronetError(f"--port must be free, got {port}, which is in use; choose another, or 0") from None
        raise BronetError(f"cannot listen on {host} port {port}: {error.strerror}; choose another") from None


def address(listening: socket.socket, host: str) -> str:
    """Return what to open in a browser."""
    port = listening.getsockname()[1]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"
