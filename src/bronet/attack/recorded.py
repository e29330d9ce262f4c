"""The network as an attack's search calls it on a GPU: recorded for a number of images, then replayed.

A search asks about the same number of images hundreds of times in a row. Where they are few, most of the time goes into
launching kernels one by one; a CUDA graph launches them together. Each recording keeps its activations, so large ones,
which keep the device busy anyway, are not recorded.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Model = Callable[[Tensor], Tensor]
Work = Callable[[], None]
Recorder = Callable[[Work], Work]

# Calls about as many images before these are recorded: libraries choose their algorithms, and passing sizes pass.
ORDINARY_CALLS = 5
# Recordings that are kept, and what one may keep of the device's memory.
MOST_RECORDINGS = 4
LARGEST_SHARE = 0.02


class Recorded:
    """A model from pixels to logits that gives what it gave, and its gradient, sooner.

    The model must be deterministic and change nothing; its weights must stay where they are.
    """

    def __init__(self, model: Model, new_recorder: Callable[[], Recorder]) -> None:
        self.model, self.new_recorder = model, new_recorder
        self.calls: Counter[torch.Size] = Counter()
        self.recordings: OrderedDict[torch.Size, Recording] = OrderedDict()
        self.unrecorded: set[torch.Size] = set()

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return the logits."""
        size = pixels.shape
        self.calls[size] += 1
        if self.calls[size] <= ORDINARY_CALLS or size in self.unrecorded:
            return self.model(pixels)
        recording = self.recordings.get(size) or self._record(pixels)
        if recording is None:
            self.unrecorded.add(size)
            return self.model(pixels)
        self.recordings[size] = recording
        self.recordings.move_to_end(size)
        if len(self.recordings) > MOST_RECORDINGS:
            self.recordings.popitem(last=False)
        logits: Tensor = _Replay.apply(pixels, recording)  # type: ignore[no-untyped-call]
        return logits

    def _record(self, pixels: Tensor) -> "Recording | None":
        """Return a recording; None where it would be too large, or cannot be made: then calls go on as before."""
        try:
            if _rehearsed(self.model, pixels) > LARGEST_SHARE:
                return None
            return Recording(self.model, pixels, self.new_recorder())
        except RuntimeError:  # memory ran out, or a layer waits for the host
            return None


class Recording:
    """The forward and the backward pass for one number of images, in memory of their own."""

    def __init__(self, model: Model, pixels: Tensor, recorder: Recorder) -> None:
        self.model = model
        self.pixels = pixels.detach().clone().requires_grad_()
        self.turn = 0  # counts forward passes
        self.spent = False  # whether the backward pass has used up what the last forward pass kept
        self._forward = recorder(self._compute_logits)
        self.weights = torch.ones_like(self.logits)
        self._backward = recorder(self._compute_gradient)

    def logits_of(self, pixels: Tensor) -> Tensor:
        """Return the logits of other images."""
        self.pixels.data.copy_(pixels)
        self._forward()
        self.turn, self.spent = self.turn + 1, False
        return self.logits.detach().clone()

    def gradient_at(self, pixels: Tensor, weights: Tensor, *, turn: int) -> Tensor:
        """Return the gradient of the weighted sum of the logits; `turn` is when those of the pixels were computed."""
        if turn != self.turn or self.spent:
            self.logits_of(pixels)
        self.weights.copy_(weights)
        self._backward()
        self.spent = True
        return self.gradient.clone()

    @torch.enable_grad()
    def _compute_logits(self) -> None:
        self.logits = self.model(self.pixels)

    def _compute_gradient(self) -> None:
        (self.gradient,) = torch.autograd.grad(self.logits, self.pixels, self.weights)


class _Replay(torch.autograd.Function):
    """A call of a recording, as the rest of a search sees it."""

    @staticmethod
    def forward(ctx: Any, pixels: Tensor, recording: Recording) -> Tensor:
        logits = recording.logits_of(pixels)
        ctx.recording, ctx.turn, ctx.pixels = recording, recording.turn, pixels.detach().clone()
        return logits

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor, None]:
        return ctx.recording.gradient_at(ctx.pixels, weights, turn=ctx.turn), None


def recorded(model: Model, device: torch.device) -> Recorded:
    """Return the model, recorded on a GPU."""
    return Recorded(model, partial(cuda_recorder, device))


def cuda_recorder(device: torch.device) -> Recorder:
    """Return what records works as CUDA graphs; they share memory, and must be replayed in the order of recording."""
    pool, stream = torch.cuda.graph_pool_handle(), _recording_stream(device)

    def record(work: Work) -> Work:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device), torch.cuda.graph(graph, pool=pool, stream=stream):
            work()
        return graph.replay

    return record


@cache
def _recording_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of all recordings of a device: libraries keep memory for every stream that they see.

    Work on another device than the stream's would not be recorded, and a replay would do nothing.
    """
    return torch.cuda.Stream(device)


def _rehearsed(model: Model, pixels: Tensor) -> float:
    """Go forward and backward as a recording will, and return what that keeps between, as a share of device memory.

    The calls before may all have been without gradients; kernels must not be loaded for the first time while recording.
    """
    probe, on_gpu = pixels.detach().clone().requires_grad_(), pixels.device.type == "cuda"
    before = torch.cuda.memory_allocated(pixels.device) if on_gpu else 0
    with torch.enable_grad():
        logits = model(probe)
    after = torch.cuda.memory_allocated(pixels.device) if on_gpu else 0
    torch.autograd.grad(logits, probe, torch.ones_like(logits))
    return (after - before) / torch.cuda.get_device_properties(pixels.device).total_memory if on_gpu else 0.0
