"""Layers and small networks with numbers that only depend on names, for comparison with the published code.

`tests/published/make.py` gives the same numbers to the published code and stores what it returns; the tests compare.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bronet.layers import CONVOLUTIONS, Bias, BROConv2d, BROLinear, CholeskyLinear, Householder, MaxMin
from bronet.losses import emma, logit_annealing
from bronet.models import build_model
from bronet.ortho.spd import SEMI_ORTHOGONAL_RIDGE
from bronet.recipe.architecture import NAMED, BRONetArchitecture, LipConvNetArchitecture
from bronet.recipe.schema import dataset_spec

BATCH = 2
TINY = {"width": 8, "depth": 2, "dense_depth": 2, "dense_width": 16}
LABELS = torch.tensor([3, 1])
EPS = 0.4


def numbers(name: str, shape: tuple[int, ...]) -> Tensor:
    """Return standard normals that depend on the name alone, on every machine and in every version."""
    generator = np.random.RandomState(zlib.crc32(name.encode()))
    return torch.from_numpy(np.asarray(generator.standard_normal(shape)))


@dataclass(frozen=True)
class Case:
    """What to compare: a module of ours, and the shape of its input."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    gradients: bool = True
    """Whether the parameters are the same ones, so that gradients are comparable."""
    tolerance: float = 1e-12


class Uncentred(nn.Module):
    """A circular convolution of ours as the published BRONet has it: tap (0, 0) is where ours has the centre.

    Each layer thus moves its padded image by one pixel to the right and down, before it is cropped.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.conv = CONVOLUTIONS[kind](8, 8, padding_mode="circular", residual_depth=1)
        self.bias = Bias(8)

    def forward(self, x: Tensor) -> Tensor:
        moved = self.conv(F.pad(x, (1, 1, 1, 1))).roll((1, 1), dims=(-2, -1))
        shifted: Tensor = self.bias(moved[..., 1:-1, 1:-1])
        return shifted


class Emma(nn.Module):
    """EMMA's logits for the head's weights, less the true one, for an inner network of norm one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(5, 6))

    def forward(self, x: Tensor) -> Tensor:
        rows = F.normalize(self.weight, dim=1)
        adjusted = emma(x, LABELS, (rows[:, None] - rows).norm(dim=-1), eps=EPS)
        return adjusted - x.gather(1, LABELS[:, None])


class Annealed(nn.Module):
    """The LA loss of logits."""

    def forward(self, x: Tensor) -> Tensor:
        return logit_annealing(x, LABELS)


def _layer(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers) if len(layers) > 1 else layers[0]


def _network(dataset: str, name: str = "bronet-m", **changes: object) -> Callable[[], nn.Module]:
    base = NAMED[name]
    assert isinstance(base, BRONetArchitecture)
    return lambda: build_model(replace(base, **(TINY | changes)), dataset_spec(dataset))  # type: ignore[arg-type]


def _lipconvnet(**changes: object) -> Callable[[], nn.Module]:
    architecture = LipConvNetArchitecture(depth=10, width=4, rank="1/4", **changes)  # type: ignore[arg-type]
    return lambda: build_model(architecture, dataset_spec("cifar100"))


def _convolution(kind: str, c_in: int, c_out: int, stride: int = 1) -> Callable[[], nn.Module]:
    return lambda: CONVOLUTIONS[kind](c_in, c_out, stride=stride)


CIFAR = (3, 32, 32)
CASES: dict[str, Case] = {
    "bro": Case(lambda: _layer(BROConv2d(8, 8, rank=2, ridge=SEMI_ORTHOGONAL_RIDGE), Bias(8)), (8, 6, 6)),
    "bro-stride": Case(lambda: _layer(BROConv2d(3, 8, stride=2, ridge=SEMI_ORTHOGONAL_RIDGE), Bias(8)), (3, 8, 8)),
    "bro-wider": Case(lambda: _layer(BROConv2d(4, 8, ridge=SEMI_ORTHOGONAL_RIDGE), Bias(8)), (4, 6, 6)),
    "bro-dense": Case(lambda: _layer(BROLinear(16, 16, rank=4, residual_depth=2), Bias(16)), (16,)),
    "cholesky-dense": Case(lambda: _layer(CholeskyLinear(16, 16, residual_depth=2), Bias(16)), (16,)),
    "maxmin": Case(MaxMin, (8, 2, 2)),
    "householder": Case(lambda: Householder(8, order=1), (8, 2, 2), gradients=False),
    "cayley": Case(_convolution("cayley", 8, 8), (8, 6, 6), gradients=False),
    "lot": Case(_convolution("lot", 8, 8), (8, 6, 6), gradients=False, tolerance=1e-3),
    "sll": Case(_convolution("sll", 8, 8), (8, 6, 6), gradients=False),
    "soc": Case(_convolution("soc", 8, 8), (8, 6, 6), gradients=False, tolerance=1e-4),
    "lot-uncentred": Case(lambda: Uncentred("lot"), (8, 6, 6), gradients=False, tolerance=1e-3),
    "cholesky-uncentred": Case(lambda: Uncentred("cholesky"), (8, 6, 6), gradients=False),
    "la": Case(Annealed, (5,)),
    "emma": Case(Emma, (5,)),
    "bronet-m": Case(_network("cifar10"), CIFAR),
    "bronet-l": Case(_network("cifar100", "bronet-l"), CIFAR),
    "bronet-tiny": Case(_network("tiny-imagenet", "bronet-tiny"), (3, 64, 64)),
    "bronet-imagenet": Case(
        _network("imagenet", "bronet-imagenet", regularized_depth=1, depth=1, neck_patch=6), (3, 224, 224)
    ),
    "liresnet": Case(_network("cifar10", "liresnet"), CIFAR),
    "lipconvnet": Case(_lipconvnet(), CIFAR),
}


def built(name: str) -> nn.Module:
    """Return the module of a case in float64, every parameter and mean filled with the numbers of its name."""
    module = CASES[name].build().double()
    state = {key: _value(f"{name}/{key}", value) for key, value in module.state_dict().items() if not fixed(key)}
    module.load_state_dict(state, strict=False)
    return module


def fixed(key: str) -> bool:
    """Whether a number of the state is no part of the published network, or the same in all of them."""
    return key.endswith(("normalization.mean", "power_vector", "log_q"))


def _value(name: str, value: Tensor) -> Tensor:
    random = numbers(name, tuple(value.shape))
    return 1 + 0.1 * random if name.endswith(("alpha", "angles")) else 0.3 * random


def images(name: str) -> Tensor:
    """Return the input of a case; pixels of an image lie in [0, 1]."""
    random = numbers(f"{name}/input", (BATCH, *CASES[name].shape))
    return random.sigmoid() if CASES[name].shape[:1] == (3,) else random


def direction(name: str, key: str, value: Tensor) -> Tensor:
    """Return the product of a gradient with fixed numbers: one number that all of its entries change."""
    return (value.detach() * numbers(f"{name}/{key}/direction", tuple(value.shape))).sum()
