"""A teacher: an ordinary residual network, with no Lipschitz constant to speak of, that says how sure a label is.

A Lipschitz network cannot give every training image a margin, least of all one whose crop or colours hide what it
shows. The teacher sees the same augmented image, and its probabilities take a share of the label's place. It learns
from the run's own images before the first step, for few epochs, because one that knows them by heart only repeats their
labels. It is not kept, and no certificate depends on it.
"""

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from bronet.data import Batch, MixedBatches
from bronet.errors import BronetError
from bronet.recipe.schema import Recipe
from bronet.training.distributed import Processes
from bronet.training.loop import Learner
from bronet.training.statistics import Display

WIDTH = 64
CONTRAST = 4.0
LOGIT_SCALE = 1 / 8
PEAK_RATE = 0.4
WARM_UP = 0.2
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4


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


def new_teacher(recipe: Recipe, device: torch.device) -> Teacher:
    """Return a teacher of the recipe's seed that has learned nothing yet."""
    spec = recipe.data.spec()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.train.seed)
        teacher = Teacher(spec.channels, spec.classes)
    return teacher.to(device).eval().requires_grad_(False)


class Lessons(Learner):
    """The teacher's own training, on the run's first `total_steps` batches: plain SGD on the cross-entropy.

    It is not saved: a resumed run trains it again, from the same seed.
    """

    def __init__(
        self, recipe: Recipe, batches: MixedBatches, processes: Processes, *, teacher: Teacher, display: Display
    ) -> None:
        if recipe.train.batch_size < 2 * processes.world:
            raise BronetError(
                "train.batch_size must be at least 2 for every process with a teacher, which normalises batches, "
                f"got {recipe.train.batch_size} for {processes.world}"
            )
        self.teacher, self.processes, self.display = teacher, processes, display
        self.epochs, self.steps_per_epoch = recipe.loss.teacher_epochs, batches.steps_per_epoch
        self.total_steps = self.epochs * self.steps_per_epoch
        teacher.train().requires_grad_(True)
        self.optimizer = torch.optim.SGD(
            teacher.parameters(), lr=PEAK_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True
        )
        self.right, self.seen, self.accuracy = torch.zeros((), device=batches.device), 0, 0.0

    def step(self, batch: Batch, number: int) -> None:
        logits = self.teacher(batch.pixels)
        self.optimizer.zero_grad()
        F.cross_entropy(logits, batch.labels).backward()  # type: ignore[no-untyped-call]
        for p in self.teacher.parameters() if self.processes.world > 1 else ():
            p.grad = None if p.grad is None else self.processes.sum(p.grad) / self.processes.world
        self.optimizer.param_groups[0]["lr"] = PEAK_RATE * self._rate(number)
        self.optimizer.step()
        self.right += (logits.argmax(dim=1) == batch.labels).sum()
        self.seen += len(batch.labels)
        self.logits = logits.detach()

    def check(self, step: int) -> None:
        """Check that the last step was finite, and show the accuracy on augmented images since the epoch began."""
        if self.processes.any(not bool(self.logits.isfinite().all())):
            raise BronetError(f"logits of the teacher must stay finite, got NaN or infinity by step {step}")
        self.accuracy = float(self.processes.sum(self.right)) / (self.seen * self.processes.world)
        self.line = f"teacher {-(-step // self.steps_per_epoch)}/{self.epochs}  accuracy {self.accuracy:.1%}"
        self.display.before(self.line)

    def end_epoch(self, epoch: int) -> None:
        self.display.epoch(self.line)
        self.right.zero_()
        self.seen = 0

    def stop(self, step: int) -> str:
        epoch = -(-step // self.steps_per_epoch)
        return f"stopped in epoch {epoch} of {self.epochs} of the teacher, which will be trained again"

    def finish(self) -> float:
        """Freeze the teacher, equal in all processes, and return its accuracy in the last epoch."""
        for buffer in self.teacher.buffers() if self.processes.world > 1 else ():
            dist.broadcast(buffer, 0)
        self.optimizer.zero_grad()
        self.teacher.eval().requires_grad_(False)
        return self.accuracy

    def _rate(self, step: int) -> float:
        """Return the learning rate over its peak: a straight line up, and one down to zero."""
        rising = max(1, round(WARM_UP * self.total_steps))
        down = (self.total_steps - step) / (self.total_steps - rising + 1)
        return (step + 1) / rising if step < rising else down


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
        return x + self.body(x)  # type: ignore[no-any-return]
