"""Batches prepared beside the step that is running: on a GPU, augmentation gets a stream of its own.

Which batches come does not change, only when they are made. On a CPU there is nothing to run beside.
"""

from collections.abc import Iterator

import torch

from bronet.data.mixed_batches import Batch


def prepared_ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield the same batches; each is prepared on the device while the step on the one before it runs."""
    if device.type != "cuda":
        yield from batches
        return
    side, main = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    side.wait_stream(main)  # the images may still be on their way to the device
    batch = _next_on(side, batches)
    while batch is not None:
        main.wait_stream(side)
        for tensor in batch:
            tensor.record_stream(main)  # made on one stream, used on the other: its memory must not be reused early
        yield batch
        batch = _next_on(side, batches)  # the step on the last one is already queued


def _next_on(stream: torch.cuda.Stream, batches: Iterator[Batch]) -> Batch | None:
    with torch.cuda.stream(stream):
        return next(batches, None)
