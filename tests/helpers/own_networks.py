"""Networks as a user would write them, with branches and without a base class; `--model own_networks:Branching`."""

import torch
from torch import Tensor, nn

import bronet

CALLS: list[str] = []
"""Of `counted`, so that a test sees whether something was imported and called."""


class Branching(nn.Module):
    """Two branches of one image that meet, a learned residual mix, a last linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((1, 1, 1, 1), 0.5))
        self.left, self.right = bronet.BROConv2d(1, 8, kernel_size=3), nn.Conv2d(1, 8, 3, padding=1)
        self.act, self.mix = bronet.MaxMin(), nn.Parameter(torch.zeros(()))
        self.inner = bronet.BROLinear(64, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = images - self.mean
        x = torch.cat([self.act(self.left(x)), torch.relu(self.right(x))], dim=1)
        x = torch.nn.functional.avg_pool2d(x, 4).flatten(1)
        w = torch.sigmoid(self.mix)
        x = (1 - w) * x + w * self.act(self.inner(x))
        return self.head(x)


def narrow() -> nn.Module:
    """A network of another shape than `Branching`."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def broken() -> nn.Module:
    """A function that makes nothing."""
    raise ValueError("no network today")


def number() -> int:
    """A function that makes no network."""
    return 3
