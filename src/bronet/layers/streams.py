"""Work of a GPU that goes on beside other work, on streams of its own. On a CPU everything happens in turn."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


class Beside:
    """A stream that starts behind all work queued so far; `with` it, what is queued runs beside the current stream.

    A tensor computed there may be read after `wait`. Its memory is its stream's, and streams are few: another user of
    this one, which need not wait for the reading, could be given the memory as soon as the tensor is let go of. `lend`
    keeps it until the reading is over.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(device))

    def __call__(self) -> AbstractContextManager[object]:
        """Return a context whose work is queued here."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def wait(self) -> None:
        """Let the current stream go on only behind what was queued here; the host does not wait."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)

    def lend(self, tensors: Iterable[Tensor]) -> None:
        """Wait, and keep the memory of tensors computed here until the current stream has read them, even if let go of.

        A graph that is being recorded has memory of its own, which no other work is given.
        """
        self.wait()
        if self._stream is not None and not torch.cuda.is_current_stream_capturing():
            for tensor in tensors:
                tensor.record_stream(torch.cuda.current_stream(self._stream.device))


def side_by_side(tasks: Sequence[Callable[[], object]], device: torch.device) -> None:
    """Run independent tasks, each beside the others: for tasks that are bound by latency."""
    besides = [Beside(device) for _ in tasks]
    for beside, task in zip(besides, tasks, strict=True):
        with beside():
            task()
    for beside in besides:
        beside.wait()
