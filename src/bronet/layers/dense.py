"""Dense orthogonal layers: the BRO reflector (Proposition 1) and the Cholesky map, both acting on dimension 1.

On (b, c, h, w) they act on every pixel alike, which is how the neck's patch layer is built. The BRO layer is applied in
factored form: an m x m matrix is never formed, however wide the layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bronet.layers.base import (
    DerivedLayer,
    batch_first,
    batch_last,
    like_input,
    reflected_rank,
    require_channels,
    require_counts,
    require_ridge,
    require_shape,
    to_autocast,
    without_autocast,
)
from bronet.layers.execution import Inversion, PreparedWeightLayer, ReflectorLayer
from bronet.layers.residual_kernel import IdentityResidual, residual_of, with_residual
from bronet.ortho.cholesky import cholesky_orthogonal
from bronet.ortho.reflector import dense_inverse, embed_channels, reflect
from bronet.ortho.spd import BRO_RIDGE, CHOLESKY_RIDGE, unit_scaled
from bronet.proof.proved_map import Product, ProvedMap, gain_of_products, linear
from bronet.proof.reflector import dense_factor, factor_norm, reflector_norm
from bronet.proof.rounding import UNDERFLOW, gamma, up
from bronet.proof.spectral import absolute_norm, largest_singular_value


class DenseFactors(NamedTuple):
    """V and (V'V + e I)^-1."""

    V: Tensor
    inverse: Tensor


@dataclass(frozen=True)
class _DenseInversion(Inversion):
    ridge: float

    def invert(self, kernels: Sequence[Tensor]) -> list[Tensor]:
        V = torch.stack([unit_scaled(kernel) for kernel in kernels])
        return list(dense_inverse(V, ridge=self.ridge).to(self.dtype).unbind())


class _Dense(DerivedLayer[DenseFactors]):
    """What the two dense layers share: sizes, checks, and the residual re-parameterisation."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        require_counts(in_features=in_features, out_features=out_features)
        self.in_features, self.out_features = in_features, out_features
        self.weight: nn.Parameter
        self.residual: IdentityResidual | None

    def V(self, dtype: torch.dtype) -> Tensor:
        """Return the matrix that is orthogonalised, computed in this precision."""
        return with_residual(self.weight.to(dtype), self.residual)

    def reset_parameters(self) -> None:
        """Start from independent normals; near the identity with the residual re-parameterisation."""
        nn.init.normal_(self.weight, std=1 / self.weight.shape[0])
        if self.residual is not None:
            self.residual.reset_parameters()

    def lipschitz_bound(self, input_size: tuple[int, int] | None = None) -> float:
        return self.proved((self.in_features,)).lipschitz


class BROLinear(_Dense, ReflectorLayer[DenseFactors]):
    """The dense block reflector x -> E x - 2 V (V'V)^-1 V' x; semi-orthogonal where the sizes differ.

    Args:
        rank: n columns of V; see `reflected_rank` for the default.
        residual_depth: D of V = I + alpha / sqrt(D) V; none by default.
        ridge: relative ridge on V'V.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        rank: int | None = None,
        residual_depth: int | None = None,
        ridge: float = BRO_RIDGE,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features)
        require_ridge(ridge)
        m, n = max(in_features, out_features), reflected_rank(rank, in_features, out_features)
        self.rank, self.ridge = n, ridge
        self.weight = nn.Parameter(torch.empty(m, n, device=device, dtype=dtype))
        self.residual = residual_of(self.weight, residual_depth)
        self.reset_parameters()

    def derive(self, key: object) -> DenseFactors:
        assert isinstance(key, torch.dtype)
        V = unit_scaled(self.V(key))
        return DenseFactors(V, dense_inverse(V, ridge=self.ridge))

    def forward(self, x: Tensor) -> Tensor:
        require_channels(x, self.in_features, "BROLinear")
        x = to_autocast(x)
        precision = self.precision_for(x)
        with without_autocast(x.device.type):
            V, inverse = self._factors(precision, x.dtype)
            return batch_first(reflect(batch_last(x), V, inverse, c_out=self.out_features, ridge=self.ridge))

    def _factors(self, precision: torch.dtype, dtype: torch.dtype) -> DenseFactors:
        if self.keeps_derived:
            return self.derived(precision)
        V = unit_scaled(self.V(precision))
        prepared = self.inverse_for(_DenseInversion(self.weight.shape, precision, dtype, self.ridge))
        with torch.no_grad():
            return DenseFactors(V, dense_inverse(V, ridge=self.ridge) if prepared is None else prepared)

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        require_shape(shape, self.in_features, "BROLinear")
        Q = dense_factor(self.V(torch.float64).detach(), ridge=self.ridge)
        squared = factor_norm(Q)
        size, magnitude = up(squared**0.5), absolute_norm(Q)
        features = self.out_features
        Q_in, Q_out = Q[: self.in_features], Q[:features]
        error = 2 * gain_of_products([Product(size, magnitude, Q.shape[0]), Product(size, magnitude, Q.shape[1])])
        gain = up(error + gamma(1) * (1 + 2 * squared + error))

        def apply(x: Tensor) -> Tensor:
            p = batch_last(x)
            return batch_first(embed_channels(p, features, dim=-2) - 2 * (Q_out @ (Q_in.mT @ p)))

        return ProvedMap(apply, (self.out_features, *shape[1:]), reflector_norm(squared), gain, UNDERFLOW)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, rank={self.rank}"


class CholeskyLinear(_Dense, PreparedWeightLayer[DenseFactors]):
    """x -> W x with W = L^-1 V, L L' = V V' + ridge: (semi-)orthogonal rows, singular values at most one."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        residual_depth: int | None = None,
        ridge: float = CHOLESKY_RIDGE,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features)
        require_ridge(ridge)
        self.ridge = ridge
        self.weight = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        self.residual = residual_of(self.weight, residual_depth)
        self.reset_parameters()

    def source(self, key: object) -> Tensor:
        assert isinstance(key, torch.dtype)
        return self.V(key)

    def derive_from(self, source: Tensor) -> DenseFactors:
        W = cholesky_orthogonal(source, ridge=self.ridge)
        return DenseFactors(W, W)

    def forward(self, x: Tensor) -> Tensor:
        require_channels(x, self.in_features, "CholeskyLinear")
        W = like_input(self.derived(self.precision_for(x)).V, x)
        return batch_first(W @ batch_last(x))

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        require_shape(shape, self.in_features, "CholeskyLinear")
        W = cholesky_orthogonal(self.V(torch.float64).detach(), ridge=self.ridge)
        norm = largest_singular_value(W)
        products = [Product(norm, absolute_norm(W), self.in_features)]
        return linear(lambda x: batch_first(W @ batch_last(x)), (self.out_features, *shape[1:]), products, norm)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}"
