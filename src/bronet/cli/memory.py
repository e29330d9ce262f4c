"""What a command's process does with memory that it has freed: it keeps it, for the next step or batch."""

import ctypes
import os

# Parameters of glibc's `mallopt`.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER = 2**31 - 1


def keep_freed_memory() -> None:
    """Tell the C library not to return freed memory to the system, which would map new pages for the next request.

    A training step, or a batch of certificates, asks for the same sizes over and over; mapping pages takes about a
    twentieth of their time on two cores. Who has set malloc by its environment variables is not overruled, and
    libraries without `mallopt` do as they do.
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return
    for parameter in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
        mallopt(parameter, _NEVER)
