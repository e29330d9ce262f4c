"""Checks that all rival convolutions share: one line that names the constraint."""

from bronet.errors import BronetError
from bronet.layers.base import require_counts


def require_convolution(in_channels: int, out_channels: int, kernel_size: int) -> None:
    """Raise unless all are at least one."""
    require_counts(in_channels=in_channels, out_channels=out_channels, kernel_size=kernel_size)


def require_odd_kernel(kernel_size: int, layer: str) -> None:
    """Raise unless the kernel has a middle tap, without which the output is not of the image's size."""
    if kernel_size % 2 == 0:
        raise BronetError(f"kernel_size of {layer} must be odd (its kernel needs a middle tap), got {kernel_size}")


def require_size(input_size: tuple[int, int] | None, layer: str) -> tuple[int, int]:
    """Return the size, or raise if there is none."""
    if input_size is None:
        raise BronetError(f"input_size must be given to bound a {layer}, whose norm depends on it, got None")
    return input_size
