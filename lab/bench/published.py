"""What the paper's published code takes on one H200, by recipe: milliseconds of a training step and of inference."""

from bronet.bench import INFERENCE, TRAINING

PUBLISHED_MS = {
    "cifar10/bronet-m": {TRAINING: 190.0, INFERENCE: 30.5},
    "cifar10/bronet-l": {TRAINING: 308.0},
    "cifar100/lipconvnet-10-32": {TRAINING: 56.6},
    "cifar100/lipconvnet-10-64": {TRAINING: 207.0},
}
CPU_RECIPES = ("cifar10/bronet-small",)
