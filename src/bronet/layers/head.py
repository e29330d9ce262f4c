"""The last layer: logits, and the Lipschitz constant of every difference of two of them.

A head promises `gaps()`: entry (t, j) bounds the Lipschitz constant of f_t - f_j with respect to the head's input. The
normalised last layer (LLN) gives |w_t - w_j|; any other head of norm at most L gives sqrt(2) L.
"""

import math
from abc import abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.layers.base import LipschitzLayer, require_channels, without_autocast
from bronet.layers.dense import BROLinear
from bronet.ortho.spd import SEMI_ORTHOGONAL_RIDGE
from bronet.proof.proved_map import Product, ProvedMap, gain_of_products
from bronet.proof.rounding import UNDERFLOW, gamma, up
from bronet.proof.spectral import absolute_norm, largest_singular_value


class Head(LipschitzLayer):
    """A last layer."""

    classes: int

    @abstractmethod
    def gaps(self) -> Float[Tensor, "k k"]:
        """Return the differentiable matrix of the Lipschitz constants of f_t - f_j; zero on the diagonal."""


class LastLayerNormalized(Head):
    """LLN: rows of length one, with bias; f_t - f_j then has the Lipschitz constant |w_t - w_j|."""

    parameter_methods: ClassVar[tuple[str, ...]] = ("gaps",)

    def __init__(
        self,
        in_features: int,
        classes: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.classes = in_features, classes
        self.weight = nn.Parameter(torch.empty(classes, in_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(classes, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=1 / math.sqrt(self.in_features))
        nn.init.zeros_(self.bias)

    def rows(self) -> Tensor:
        """Return the rows, normalised."""
        return _normalized(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        require_channels(x, self.in_features, "LastLayerNormalized")
        x = _full_precision(x)
        with without_autocast(x.device.type):
            return F.linear(x, self.rows().to(x.dtype), self.bias.to(x.dtype))

    def gaps(self) -> Float[Tensor, "k k"]:
        rows = self.rows()
        # Differences, not 2 - 2 cos: nearly parallel rows keep their digits. The diagonal's gradient is zero.
        differences = rows[:, None] - rows[None]
        return torch.linalg.vector_norm(differences, dim=-1)

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        _require_vector(shape, self.in_features)
        # The bias is cloned: a model in float64 must not share its numbers with a proof.
        rows, bias = _normalized(self.weight.detach().double()), self.bias.detach().double().clone()
        norm = largest_singular_value(rows)
        gain = gain_of_products([Product(norm, absolute_norm(rows), self.in_features)])
        shift = float(torch.linalg.vector_norm(bias))
        apply = lambda h: h @ rows.mT + bias  # noqa: E731
        gain, offset = up(gain + gamma(1) * (norm + gain)), up(gamma(1) * shift + UNDERFLOW)
        return ProvedMap(apply, (self.classes,), norm, gain, offset, gaps=upper_gaps(rows))

    def lipschitz_bound(self, input_size: tuple[int, int] | None = None) -> float:
        return self.proved((self.in_features,)).lipschitz

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.classes}"


class OrthogonalHead(Head):
    """A semi-orthogonal BRO layer with bias: every difference of logits is sqrt(2)-Lipschitz (section 2.1)."""

    def __init__(
        self,
        in_features: int,
        classes: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.classes = classes
        self.linear = BROLinear(in_features, classes, ridge=SEMI_ORTHOGONAL_RIDGE, device=device, dtype=dtype)
        self.bias = nn.Parameter(torch.zeros(classes, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        x = _full_precision(x)
        with without_autocast(x.device.type):
            logits: Tensor = self.linear(x) + self.bias.to(x.dtype)
        return logits

    def gaps(self) -> Float[Tensor, "k k"]:
        return math.sqrt(2.0) * (1 - torch.eye(self.classes, device=self.bias.device, dtype=self.bias.dtype))

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        _require_vector(shape, self.linear.in_features)
        linear, bias = self.linear.proved(shape), self.bias.detach().double().clone()
        gain = up(linear.gain + gamma(1) * (linear.lipschitz + linear.gain))
        offset = up(linear.offset + gamma(1) * float(torch.linalg.vector_norm(bias)) + UNDERFLOW)
        return ProvedMap(lambda h: linear.apply(h) + bias, (self.classes,), linear.lipschitz, gain, offset)

    def lipschitz_bound(self, input_size: tuple[int, int] | None = None) -> float:
        return self.linear.lipschitz_bound()


def _require_vector(shape: tuple[int, ...], features: int) -> None:
    if shape != (features,):
        raise BronetError(f"the head expects {features} features, got activations of shape {shape}; flatten them")


def _full_precision(x: Tensor) -> Tensor:
    """Return what a head computes with: float32 where autocast rounds, as margins are small differences of logits."""
    return x.float() if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64 else x


def _normalized(weight: Float[Tensor, "k d"]) -> Float[Tensor, "k d"]:
    """Return each row divided by its length; a row of zeros stays.

    Rows are first divided by their largest entry, a constant to the gradient because the result does not change with a
    row's scale: squares of 1e20 overflow in float32, those of 1e-25 vanish.
    """
    tiny = torch.finfo(weight.dtype).tiny
    largest = weight.detach().abs().amax(dim=-1, keepdim=True).clamp_min(tiny)
    return F.normalize(weight / largest, dim=-1, eps=tiny)


def upper_gaps(rows: Float[Tensor, "k d"]) -> Float[Tensor, "k k"]:
    """Return |w_t - w_j| rounded up: a difference, a square root of a sum of squares."""
    gaps = torch.stack([torch.linalg.vector_norm(rows - row, dim=-1) for row in rows])
    slack = 1 + 2 * gamma(rows.shape[-1] + 4)
    absolute = gamma(1) * 2  # the rounded differences, in norm
    return (gaps + absolute) * slack * (1 - torch.eye(rows.shape[0], dtype=torch.float64, device=rows.device))
