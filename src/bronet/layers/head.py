"""The last layer: logits, and the Lipschitz constant of every difference of two of them.

A head promises `gaps()`: entry (t, j) bounds the Lipschitz constant of f_t - f_j with respect to the head's input. The
normalised last layer (LLN) gives |w_t - w_j|; any other head of norm at most L gives sqrt(2) L. A smooth head also
proves how its differences bend (CRC).
"""

import math
from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from bronet.errors import BronetError
from bronet.layers.base import Device, LipschitzLayer, without_autocast
from bronet.layers.dense import BROLinear
from bronet.layers.regularized_conv import power_iteration
from bronet.ortho.spd import SEMI_ORTHOGONAL_RIDGE, unit_scaled
from bronet.proof.curvature import bent, proved_bend
from bronet.proof.proved_map import ProvedMap, gamma, linear_map, shifted
from bronet.proof.spectral import product_with


class Head(LipschitzLayer):
    """A last layer: a map whose last step is linear, and a bias."""

    def __init__(
        self, in_features: int, classes: int, *, device: Device = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.in_features, self.classes = in_features, classes
        self.input_channels = in_features
        self.make_linear(device, dtype)
        self.bias = nn.Parameter(torch.zeros(classes, device=device, dtype=dtype))

    @abstractmethod
    def make_linear(self, device: Device, dtype: torch.dtype | None) -> None:
        """Make the parameters of the linear map."""

    @abstractmethod
    def gaps(self) -> Float[Tensor, "k k"]:
        """Return the differentiable matrix of the Lipschitz constants of f_t - f_j; zero on the diagonal."""

    def _with_bias(self, linear: ProvedMap) -> ProvedMap:
        """Return the proof of the head from that of its linear map."""
        # The bias is cloned: a model in float64 must not share its numbers with a proof.
        return shifted(linear, self.bias.detach().double().clone())

    def check_shape(self, shape: tuple[int, ...]) -> None:
        if shape != (self.in_features,):
            wanted = f"the head expects {self.in_features} features"
            raise BronetError(f"{wanted}, got activations of shape {shape}; flatten them")


class LastLayerNormalized(Head):
    """LLN: rows of length one, with bias; f_t - f_j then has the Lipschitz constant |w_t - w_j|."""

    parameter_methods: ClassVar[tuple[str, ...]] = ("gaps",)

    def make_linear(self, device: Device, dtype: torch.dtype | None) -> None:
        self.weight = nn.Parameter(torch.empty(self.classes, self.in_features, device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=1 / math.sqrt(self.in_features))

    def rows(self) -> Tensor:
        """Return the rows, normalised."""
        return _normalized(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = _full_precision(x)
        with without_autocast(x.device.type):
            return F.linear(x, self.rows().to(x.dtype), self.bias.to(x.dtype))

    def gaps(self) -> Float[Tensor, "k k"]:
        rows = self.rows()
        # Differences, not 2 - 2 cos: nearly parallel rows keep their digits. The diagonal's gradient is zero.
        return torch.linalg.vector_norm(rows[:, None] - rows[None], dim=-1)

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        rows = _normalized(self.weight.detach().double())
        plain = linear_map(lambda h: h @ rows.mT, (self.classes,), [product_with(rows)])
        return replace(self._with_bias(plain), gaps=upper_gaps(rows))

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.classes}"


class OrthogonalHead(Head):
    """A semi-orthogonal BRO layer with bias: every difference of logits is sqrt(2)-Lipschitz (section 2.1)."""

    def make_linear(self, device: Device, dtype: torch.dtype | None) -> None:
        sizes = self.in_features, self.classes
        self.linear = BROLinear(*sizes, ridge=SEMI_ORTHOGONAL_RIDGE, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        x = _full_precision(x)
        with without_autocast(x.device.type):
            logits: Tensor = self.linear(x) + self.bias.to(x.dtype)
        return logits

    def gaps(self) -> Float[Tensor, "k k"]:
        return math.sqrt(2.0) * (1 - torch.eye(self.classes, device=self.bias.device, dtype=self.bias.dtype))

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        return self._with_bias(self.linear.proved(shape))


class SmoothHead(Head):
    """A hidden layer of `HIDDEN` times as many units as features, with a smooth activation, then a linear map (CRC).

    Guaranteed: the larger of two proved radii, that of the Lipschitz constants and that of gradient and curvature
    (`bronet.proof.curvature`). Training sees the constants alone, with a power-iteration estimate of the hidden
    layer's norm, which nothing but a loss that sees it keeps small.
    """

    HIDDEN: ClassVar[int] = 4
    only_regularized: ClassVar[bool] = True
    parameter_methods: ClassVar[tuple[str, ...]] = ("gaps", "update_estimate")
    power_vector: Tensor

    def make_linear(self, device: Device, dtype: torch.dtype | None) -> None:
        d, hidden = self.in_features, self.HIDDEN * self.in_features
        self.hidden_weight = nn.Parameter(torch.empty(hidden, d, device=device, dtype=dtype))
        self.hidden_bias = nn.Parameter(torch.zeros(hidden, device=device, dtype=dtype))
        self.weight = nn.Parameter(torch.empty(self.classes, hidden, device=device, dtype=dtype))
        self.register_buffer("power_vector", torch.empty(d, device=device, dtype=dtype))
        nn.init.normal_(self.hidden_weight, std=1 / math.sqrt(hidden))
        nn.init.normal_(self.weight, std=1 / math.sqrt(hidden))
        nn.init.normal_(self.power_vector)

    def forward(self, x: Tensor) -> Tensor:
        x = _full_precision(x)
        with without_autocast(x.device.type):
            hidden = bent(F.linear(x, self.hidden_weight.to(x.dtype), self.hidden_bias.to(x.dtype)))
            return F.linear(hidden, self.weight.to(x.dtype), self.bias.to(x.dtype))

    @torch.no_grad()
    def update_estimate(self, steps: int) -> None:
        """Take power-iteration steps on W'W, warm-started from the stored vector."""
        W = unit_scaled(self.hidden_weight)
        self.power_vector.copy_(power_iteration(lambda v: W.mT @ (W @ v), self.power_vector, steps))

    def gaps(self) -> Float[Tensor, "k k"]:
        v = self.power_vector
        norm = (self.hidden_weight @ v).norm() / v.norm()  # the activation's slope lies below one
        return norm * torch.linalg.vector_norm(self.weight[:, None] - self.weight[None], dim=-1)

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        numbers = (self.hidden_weight, self.hidden_bias, self.weight, self.bias)
        W, b, V, c = (number.detach().double().clone() for number in numbers)
        return proved_bend(W, b, V, c, upper_gaps(V))


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
