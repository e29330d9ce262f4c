"""Which names and addresses are this machine alone, seen from itself."""

import contextlib
import ipaddress


def is_local(host: str) -> bool:
    """Whether a host, without its port, is a loopback address or localhost. No other name is: it may point anywhere."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    return host == "localhost"
