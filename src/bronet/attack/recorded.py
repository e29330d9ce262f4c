"""The network as an attack's search calls it on a GPU: recorded for a number of images, then replayed.

A search asks about the same number of images hundreds of times in a row. Where they are few, most of the time goes into
launching kernels one by one; a CUDA graph launches them together. Each recording keeps its activations, so large ones,
which keep the device busy anyway, are not recorded.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
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
        self.too_large: set[torch.Size] = set()

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return the logits."""
        size = pixels.shape
        self.calls[size] += 1
        if self.calls[size] <= ORDINARY_CALLS or size in self.too_large:
            return self.model(pixels)
        if size not in self.recordings:
            if _memory_share(self.model, pixels) > LARGEST_SHARE:
                self.too_large.add(size)
                return self.model(pixels)
            self.recordings[size] = Recording(self.model, pixels, self.new_recorder())
            if len(self.recordings) > MOST_RECORDINGS:
                self.recordings.popitem(last=False)
        self.recordings.move_to_end(size)
        logits: Tensor = _Replay.apply(pixels, self.recordings[size])  # type: ignore[no-untyped-call]
        return logits


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


def recorded(model: Model, device: torch.device) -> Model:
    """Return the model, recorded where that is possible: on a GPU."""
    return Recorded(model, cuda_recorder) if device.type == "cuda" else model


def cuda_recorder() -> Recorder:
    """Return what records works as CUDA graphs; they share memory, and must be replayed in the order of recording."""
    pool = torch.cuda.graph_pool_handle()

    def record(work: Work) -> Work:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            work()
        return graph.replay

    return record


def _memory_share(model: Model, pixels: Tensor) -> float:
    """Return what a call keeps for its backward pass, as a share of the device's memory."""
    if pixels.device.type != "cuda":
        return 0.0
    probe = pixels.detach().clone().requires_grad_()
    before = torch.cuda.memory_allocated(pixels.device)
    with torch.enable_grad():
        logits = model(probe)
    kept = torch.cuda.memory_allocated(pixels.device) - before
    del logits
    return kept / torch.cuda.get_device_properties(pixels.device).total_memory
