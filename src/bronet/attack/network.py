"""The network as an attack's search calls it on a GPU: in half precision, for padded batches, recorded and replayed.

Float16 has the eleven significant bits of TF32, so the search sees as well with it; what it lacks is range. Activations
of a Lipschitz network stay small. Gradients may vanish, so that of every image is brought to one size on its way
through the network, which is linear in it, and back to its own at the pixels.

Activations lie as (pixel, channel, image), so the number of images is the length of a row in memory. Rows of odd length
are not aligned, and a GPU multiplies such matrices at a fraction of its speed; a search is left with any number.

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

from bronet.attack.search import Model, per_image

Work = Callable[[], None]
Recorder = Callable[[Work], Work]

# Calls about as many images before these are recorded: libraries choose their algorithms, and passing sizes pass.
ORDINARY_CALLS = 5
# Recordings that are kept, and what one may keep of the device's memory.
MAX_RECORDINGS = 4
LARGEST_SHARE = 0.02
# The largest entry of an image's gradient at the logits: far from the largest half (65504), and from the smallest.
_SIZE = 256.0
MULTIPLE = 8  # 16 bytes of half precision, what the widest loads want


class _Gradients:
    """Hooks of one forward pass: at the logits the gradient of each image comes to size, at the pixels back."""

    factors: Tensor  # of the backward pass that is under way

    def to_size(self, gradient: Tensor) -> Tensor:
        # No factor is below the normal numbers: where those are flushed to zero, 0 / 0 would be NaN.
        least = torch.finfo(gradient.dtype).tiny * _SIZE
        self.factors = gradient.abs().amax(dim=1).clamp_min(least) / _SIZE
        return gradient / self.factors[:, None]

    def to_own_size(self, gradient: Tensor) -> Tensor:
        return gradient * per_image(self.factors, gradient)


def in_half_precision(model: Model) -> Model:
    """Return the model from pixels to logits, in half precision on a GPU; on a CPU, which gains nothing, as it is.

    Images must not influence each other's logits, as in evaluation mode. Logits have the dtype of the pixels.
    """

    def searched(pixels: Tensor) -> Tensor:
        seen, device = pixels.view_as(pixels), pixels.device.type
        with torch.autocast(device, dtype=torch.float16, enabled=device == "cuda", cache_enabled=False):
            logits = model(seen).to(pixels.dtype)
        if seen.requires_grad and logits.requires_grad:
            gradients = _Gradients()
            seen.register_hook(gradients.to_own_size)
            logits.register_hook(gradients.to_size)
        return logits

    return searched


def padded_to_multiple(model: Model) -> Model:
    """Return the model from pixels to logits, with blank images added up to the next `MULTIPLE`, and taken off again.

    Images must not influence each other's logits, as in evaluation mode.
    """

    def asked(pixels: Tensor) -> Tensor:
        blank = pixels.new_zeros(-len(pixels) % MULTIPLE, *pixels.shape[1:])
        return model(torch.cat((pixels, blank)))[: len(pixels)]

    return asked


class Recorded:
    """A model from pixels to logits that gives what it gave, and its gradient, sooner.

    The model must be deterministic and change nothing; its weights must stay where they are.
    """

    def __init__(self, model: Model, new_recorder: Callable[[], Recorder]) -> None:
        self.model, self.new_recorder = model, new_recorder
        self.calls: Counter[torch.Size] = Counter()
        self.recordings: OrderedDict[torch.Size, Recording | None] = OrderedDict()

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return the logits."""
        size = pixels.shape
        self.calls[size] += 1
        if self.calls[size] <= ORDINARY_CALLS:
            return self.model(pixels)
        if size not in self.recordings:
            self.recordings[size] = self._record(pixels)
        self.recordings.move_to_end(size)
        if len(self.recordings) > MAX_RECORDINGS:
            self.recordings.popitem(last=False)
        recording = self.recordings[size]
        if recording is None:
            return self.model(pixels)
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


def recorded_on_gpu(model: Model, device: torch.device) -> Recorded:
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
