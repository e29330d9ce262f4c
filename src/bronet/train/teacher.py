"""A teacher: an ordinary residual network, with no Lipschitz constant to speak of, that says how sure a label is.

A Lipschitz network cannot give every training image a margin, least of all one whose crop or colours hide what it
shows. The teacher sees the same augmented image, and its probabilities take a share of the label's place. It learns
from the run's own images, for a few epochs before the first step, and is not kept: no certificate depends on it. It
must not learn the images by heart, or it only repeats their labels; so it is trained for few epochs.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from bronet.data import MixedBatches, prepared_ahead
from bronet.errors import BronetError
from bronet.recipe.schema import Recipe
from bronet.train.processes import Processes
from bronet.train.progress import LOOK_EVERY

WIDTH = 64
CONTRAST = 4.0
LOGIT_SCALE = 1 / 8

PEAK_RATE = 0.4
WARM_UP = 0.2
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4


class Lesson(NamedTuple):
    """Where the teacher's own training stands; `accuracy` is of the augmented images since the epoch began."""

    epoch: int
    epochs: int
    accuracy: float
    ends_epoch: bool

    def __str__(self) -> str:
        return f"teacher {self.epoch}/{self.epochs}  accuracy {self.accuracy:.1%}"


class Teacher(nn.Module):
    """Pixels -> logits: eight convolutions, batch normalisation and two residual blocks."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            _convolution(channels, WIDTH),
            _convolution(WIDTH, 2 * WIDTH, halving=True),
            _Residual(2 * WIDTH),
            _convolution(2 * WIDTH, 4 * WIDTH, halving=True),
            _convolution(4 * WIDTH, 8 * WIDTH, halving=True),
            _Residual(8 * WIDTH),
        )
        self.head = nn.Linear(8 * WIDTH, classes, bias=False)

    def forward(self, pixels: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        centred = (CONTRAST * (pixels - 0.5)).to(memory_format=torch.channels_last)
        with torch.autocast(pixels.device.type, dtype=torch.bfloat16, enabled=pixels.is_cuda, cache_enabled=False):
            logits: Tensor = self.head(self.features(centred).amax(dim=(2, 3)))
        return LOGIT_SCALE * logits.float()

    @torch.no_grad()
    def targets(
        self, pixels: Float[Tensor, "b c h w"], labels: Int[Tensor, " b"], *, share: float
    ) -> Float[Tensor, "b k"]:
        """Return a probability for every class: `share` times the teacher's, and the label for the rest."""
        probability = self(pixels).softmax(dim=1)
        truth = labels[:, None] == torch.arange(probability.shape[1], device=labels.device)
        return share * probability + (1 - share) * truth


def new_teacher(recipe: Recipe, device: torch.device) -> Teacher | None:
    """Return a teacher that has learned nothing yet; None if the recipe does without."""
    if not recipe.loss.teacher:
        return None
    spec = recipe.data.spec()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.train.seed)
        teacher = Teacher(spec.channels, spec.classes)
    return teacher.to(device).eval().requires_grad_(False)


def lessons(teacher: Teacher, recipe: Recipe, batches: MixedBatches, processes: Processes) -> Iterator[Lesson]:
    """Train the teacher in place on the run's first batches; yield now and then how far it is.

    After the last lesson it is frozen, and equal in all processes.
    """
    if recipe.train.batch_size < 2 * processes.world:
        raise BronetError(
            "train.batch_size must be at least 2 for every process with a teacher, which normalises batches, "
            f"got {recipe.train.batch_size} for {processes.world}"
        )
    epochs, count, device = recipe.loss.teacher_epochs, batches.steps_per_epoch, batches.device
    steps = epochs * count
    teacher.train().requires_grad_(True)
    optimizer = torch.optim.SGD(
        teacher.parameters(), lr=PEAK_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps))
    right, seen = torch.zeros((), device=device), 0
    for step, batch in enumerate(prepared_ahead(batches.between(0, steps), device), start=1):
        logits = teacher(batch.pixels)
        optimizer.zero_grad()
        F.cross_entropy(logits, batch.labels).backward()  # type: ignore[no-untyped-call]
        if processes.world > 1:
            _average_gradients(teacher, processes)
        optimizer.step()
        schedule.step()
        right += (logits.argmax(dim=1) == batch.labels).sum()
        seen += len(batch.labels)
        ends_epoch = step % count == 0
        if ends_epoch or step % LOOK_EVERY == 0:
            if processes.any(not bool(logits.isfinite().all())):
                raise BronetError(f"logits of the teacher must stay finite, got NaN or infinity by step {step}")
            accuracy = float(processes.sum(right)) / (seen * processes.world)
            yield Lesson(-(-step // count), epochs, accuracy, ends_epoch)
        if ends_epoch:
            right, seen = torch.zeros_like(right), 0
    for buffer in teacher.buffers() if processes.world > 1 else ():
        dist.broadcast(buffer, 0)
    optimizer.zero_grad()
    teacher.eval().requires_grad_(False)


def _average_gradients(teacher: Teacher, processes: Processes) -> None:
    gradients = [p.grad for p in teacher.parameters() if p.grad is not None]
    mean = processes.sum(torch.cat([gradient.flatten() for gradient in gradients])) / processes.world
    for gradient, part in zip(gradients, mean.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def _rate(step: int, steps: int) -> float:
    """Return the learning rate over its peak: a straight line up, and one down to zero."""
    rising = max(1, round(WARM_UP * steps))
    return (step + 1) / rising if step < rising else (steps - step) / (steps - rising + 1)


def _convolution(inputs: int, outputs: int, *, halving: bool = False) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        _Halving() if halving else nn.Identity(),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class _Halving(nn.Module):
    """The largest of every 2 x 2 pixels; torch's own pooling need not repeat its bits on a GPU."""

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c half_h half_w"]:
        odd_height, odd_width = x.shape[2] % 2, x.shape[3] % 2
        if odd_height or odd_width:
            x = F.pad(x, (0, odd_width, 0, odd_height), value=-torch.inf)
        rows = torch.maximum(x[:, :, ::2], x[:, :, 1::2])
        return torch.maximum(rows[..., ::2], rows[..., 1::2])


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_convolution(width, width), _convolution(width, width))

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        out: Tensor = x + self.body(x)
        return out
