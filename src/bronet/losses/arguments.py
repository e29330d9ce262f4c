"""What every loss asks of its arguments.

Only what is known without waiting for an accelerator is checked: the range of labels held on one is not.
"""

import torch
from torch import Tensor

from bronet.errors import BronetError


def checked_logits(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the logits in float32 or better, once shapes, dtypes and (on the CPU) labels are checked."""
    if logits.ndim != 2 or logits.shape[0] < 1 or logits.shape[1] < 2:
        raise BronetError(f"logits must have shape (images >= 1, classes >= 2), got {tuple(logits.shape)}")
    if not logits.is_floating_point():
        raise BronetError(f"logits must be floating point, got {logits.dtype}")
    if labels.shape != logits.shape[:1] or labels.dtype != torch.int64:
        raise BronetError(
            f"labels must be int64 of shape {tuple(logits.shape[:1])}, one class index per image, "
            f"got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    if labels.device.type == "cpu" and not torch.compiler.is_compiling():
        least, largest = (int(bound) for bound in labels.aminmax())
        if least < 0 or largest >= logits.shape[1]:
            raise BronetError(f"labels must lie in 0 .. {logits.shape[1] - 1}, got {least} .. {largest}")
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def not_negative(name: str, value: float) -> None:
    """Raise unless value >= 0."""
    if not value >= 0:
        raise BronetError(f"{name} must be at least 0, got {value}")


def positive(name: str, value: float) -> None:
    """Raise unless value > 0."""
    if not value > 0:
        raise BronetError(f"{name} must be positive, got {value}")
