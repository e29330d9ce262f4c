"""A teacher: an ordinary residual network without any Lipschitz constant, which says how sure a label is.

A Lipschitz network cannot get every training image right with a margin, least of all one whose crop or colours hide
what it shows. The teacher sees the same augmented image, and its probabilities take part of the label's place. It is
trained on the same images for a few epochs, in a small part of the run's time, and thrown away; certificates never
depend on it.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from bronet.data import MixedBatches, prepared_ahead
from bronet.recipe.schema import Recipe

PEAK_RATE = 0.4
WARM_UP = 0.2
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4


class Teacher(nn.Module):
    """Six convolutions with batch normalisation and two residual blocks, in channels-last order."""

    def __init__(self, channels: int, classes: int, width: int = 64) -> None:
        super().__init__()
        self.features = nn.Sequential(
            _convolution(channels, width),
            _convolution(width, 2 * width, pooled=True),
            _Residual(2 * width),
            _convolution(2 * width, 4 * width, pooled=True),
            _convolution(4 * width, 8 * width, pooled=True),
            _Residual(8 * width),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(8 * width, classes, bias=False)

    def forward(self, pixels: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        centred = (4 * (pixels - 0.5)).to(memory_format=torch.channels_last)
        logits: Tensor = self.head(self.features(centred))
        return 0.125 * logits.float()

    @torch.no_grad()
    def targets(
        self, pixels: Float[Tensor, "b c h w"], labels: Int[Tensor, " b"], *, share: float
    ) -> Float[Tensor, "b k"]:
        """Return a probability for every class: the teacher's, and the label for the rest of the share."""
        with torch.autocast(pixels.device.type, dtype=torch.bfloat16, enabled=pixels.is_cuda, cache_enabled=False):
            probability = self(pixels).softmax(dim=1)
        truth = labels[:, None] == torch.arange(probability.shape[1], device=labels.device)
        return share * probability + (1 - share) * truth


def taught(recipe: Recipe, batches: MixedBatches) -> Teacher:
    """Return a teacher trained on the run's first batches."""
    spec = recipe.data.spec()
    device = batches.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(recipe.train.seed)
        teacher = Teacher(spec.channels, spec.classes).to(device)
    optimizer = torch.optim.SGD(
        teacher.parameters(), lr=PEAK_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True
    )
    steps = recipe.loss.teacher_epochs * batches.steps_per_epoch
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, PEAK_RATE, total_steps=steps, pct_start=WARM_UP, anneal_strategy="linear", cycle_momentum=False
    )
    right = torch.zeros((), device=device)
    for batch in prepared_ahead(batches.between(0, steps), device):
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            logits = teacher(batch.pixels)
        loss = F.cross_entropy(logits, batch.labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        right = 0.98 * right + 0.02 * (logits.argmax(dim=1) == batch.labels).float().mean()
    print(f"teacher: {steps} steps, accuracy on its last augmented batches {float(right):.3f}", flush=True)
    return teacher.eval().requires_grad_(False)


def _convolution(inputs: int, outputs: int, *, pooled: bool = False) -> nn.Sequential:
    layers = [
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        *([nn.MaxPool2d(2)] if pooled else []),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    ]
    return nn.Sequential(*layers)


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_convolution(width, width), _convolution(width, width))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.body(x)
        return out
