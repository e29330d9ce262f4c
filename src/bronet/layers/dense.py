"""Dense orthogonal layers: the BRO reflector (Proposition 1) and the Cholesky map, both acting on dimension 1.

On (b, c, h, w) they act on every pixel alike, which is how the neck's patch layer is built. The BRO layer is applied in
factored form: an m x m matrix is never formed, however wide the layer. `orthogonal_bro` forms it, for other modules.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from bronet.errors import BronetError
from bronet.layers.base import (
    IMAGE_AXES,
    Device,
    apply_to_channels,
    batch_first,
    batch_last,
    like_input,
    reflected_rank,
    require_counts,
    require_ridge,
    to_autocast,
    without_autocast,
)
from bronet.layers.execution import Derivation, DerivedLayer, T
from bronet.ortho.bro_convolution import pixels_first
from bronet.ortho.orthogonal_maps import cholesky_orthogonal
from bronet.ortho.reflector import dense_inverse, embed_channels, evaluate, evaluation_factors, reflect
from bronet.ortho.spd import BRO_RIDGE, CHOLESKY_RIDGE, SEMI_ORTHOGONAL_RIDGE, unit_scaled
from bronet.proof.proved_map import Product, ProvedMap, gamma, linear_map, rounding_of_products, up
from bronet.proof.reflector import dense_factor, factor_norm, reflector_norm
from bronet.proof.spectral import absolute_norm, product_with


@dataclass(frozen=True)
class _Inverse(Derivation):
    """(V'V)^-1, rounded to `dtype`."""

    dtype: torch.dtype
    ridge: float

    def of(self, kernels: Sequence[Tensor]) -> list[Tensor]:
        V = torch.stack([unit_scaled(kernel) for kernel in kernels])
        return list(dense_inverse(V, ridge=self.ridge).to(self.dtype).unbind())


@dataclass(frozen=True)
class _CholeskyWeight(Derivation):
    differentiable: ClassVar[bool] = True
    ridge: float

    def of(self, kernels: Sequence[Tensor]) -> list[Tensor]:
        return [cholesky_orthogonal(V, ridge=self.ridge) for V in kernels]


class _Dense(DerivedLayer[torch.dtype, T]):
    """What the two dense layers share: sizes, checks, and the residual re-parameterisation."""

    def __init__(self, in_features: int, out_features: int, ridge: float) -> None:
        super().__init__()
        require_counts(in_features=in_features, out_features=out_features)
        require_ridge(ridge)
        self.in_features, self.out_features, self.ridge = in_features, out_features, ridge
        self.input_channels = in_features

    def reset_parameters(self) -> None:
        """Start from independent normals; near the identity with the residual re-parameterisation."""
        nn.init.normal_(self.weight, std=1 / self.weight.shape[0])
        if self.residual is not None:
            nn.init.ones_(self.residual.alpha)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}"


class BROLinear(_Dense[tuple[Tensor, ...]]):
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
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, ridge)
        self.rank, m = reflected_rank(rank, in_features, out_features), max(in_features, out_features)
        self.own_kernel(torch.empty(m, self.rank, device=device, dtype=dtype), residual_depth)
        self.reset_parameters()

    def derive(self, key: torch.dtype) -> tuple[Tensor, ...]:
        """Return V and (V'V + e I)^-1, on a CPU what takes fewer products, unless the weights must be portable."""
        if self.weight.device.type == "cpu" and not self.portable:
            return evaluation_factors(self.V(key), self.in_features, self.out_features, ridge=self.ridge)
        V = unit_scaled(self.V(key))
        return V, dense_inverse(V, ridge=self.ridge)

    def forward(self, x: Tensor) -> Tensor:
        x = to_autocast(x)
        precision = self.precision_for(x)
        with without_autocast(x.device.type):
            if self.keeps_derived and x.device.type == "cpu" and not self.portable:
                rows = (pixels_first(x) if x.ndim == 1 + IMAGE_AXES else x).movedim(1, -1)
                return evaluate(rows, tuple(factor.to(x.dtype) for factor in self.derived(precision))).movedim(-1, 1)
            inverse: Tensor | None
            if self.keeps_derived:
                V, inverse = self.derived(precision)
            else:
                V = unit_scaled(self.V(precision))
                inverse = self.result_ahead(_Inverse(self.weight.shape, precision, x.dtype, self.ridge))
            return batch_first(reflect(batch_last(x), V, inverse, c_out=self.out_features, ridge=self.ridge))

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        Q = dense_factor(self.V(torch.float64).detach(), ridge=self.ridge)
        squared, features = factor_norm(Q), self.out_features
        size, magnitude = up(squared**0.5), absolute_norm(Q)
        Q_in, Q_out = Q[: self.in_features], Q[:features]
        products = [Product(size, magnitude, Q.shape[0]), Product(size, magnitude, Q.shape[1])]
        error, lost = (2 * bound for bound in rounding_of_products(products))
        gain = up(error + gamma(1) * (1 + 2 * squared + error))

        def apply(x: Tensor) -> Tensor:
            p = batch_last(x)
            return batch_first(embed_channels(p, features, dim=-2) - 2 * (Q_out @ (Q_in.mT @ p)))

        return ProvedMap(apply, (self.out_features, *shape[1:]), reflector_norm(squared), gain, up(2 * lost))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={self.rank}"


class CholeskyLinear(_Dense[Tensor]):
    """x -> W x with W = L^-1 V, L L' = V V' + ridge: (semi-)orthogonal rows, singular values at most one."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        residual_depth: int | None = None,
        ridge: float = CHOLESKY_RIDGE,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, ridge)
        self.own_kernel(torch.empty(out_features, in_features, device=device, dtype=dtype), residual_depth)
        self.reset_parameters()

    def derive(self, key: torch.dtype) -> Tensor:
        return cholesky_orthogonal(self.V(key), ridge=self.ridge)

    def forward(self, x: Tensor) -> Tensor:
        precision = self.precision_for(x)
        W = self.result_ahead(_CholeskyWeight(self.weight.shape, precision, self.ridge))
        return apply_to_channels(like_input(self.derived(precision) if W is None else W, x), x)

    def proved(self, shape: tuple[int, ...]) -> ProvedMap:
        with torch.no_grad():
            W = self.derive(torch.float64)
        return linear_map(lambda x: batch_first(W @ batch_last(x)), (self.out_features, *shape[1:]), [product_with(W)])


class BlockReflector(nn.Module):
    """V -> the first rows and columns of I - 2 V (V'V)^-1 V', so many as the weight has.

    Guaranteed: singular values at most one, for every V, up to rounding (1.05 in float32 for the worst V); all equal to
    one where V is well conditioned, up to the ridge: rows or columns, whichever are fewer, are orthonormal. Computed in
    float32 or better, outside autocast.
    """

    def __init__(self, out_features: int, in_features: int, *, rank: int, ridge: float) -> None:
        super().__init__()
        self.out_features, self.in_features, self.rank, self.ridge = out_features, in_features, rank, ridge

    def forward(self, V: Float[Tensor, "m n"]) -> Float[Tensor, "out in"]:
        with without_autocast(V.device.type):
            scaled = unit_scaled(V.to(torch.promote_types(V.dtype, torch.float32)))
            inverse = dense_inverse(scaled, ridge=self.ridge)
            product = scaled[: self.out_features] @ inverse @ scaled[: self.in_features].mT
            eye = torch.eye(self.out_features, self.in_features, dtype=scaled.dtype, device=V.device)
            return (eye - 2 * product).to(V.dtype)

    def right_inverse(self, weight: Float[Tensor, "out in"]) -> Float[Tensor, "m n"]:
        """Return a new random V: a weight that is no reflector has no V, so what it was does not matter."""
        m = max(self.out_features, self.in_features)
        return torch.randn(m, self.rank, device=weight.device, dtype=weight.dtype) / m

    def extra_repr(self) -> str:
        return f"{self.out_features}, {self.in_features}, rank={self.rank}"


def orthogonal_bro(
    module: nn.Module, name: str = "weight", *, rank: int | None = None, ridge: float | None = None
) -> nn.Module:
    """Parametrize a module's matrix by a block reflector and return the module; its value is drawn anew.

    For the weights of modules that are not ours, in the style of torch.nn.utils.parametrizations.orthogonal. The
    parameter is then `module.parametrizations.<name>.original`, V. W is formed, unlike in `BROLinear`: m n^2 operations
    and an m x m matrix, m the larger side. Guaranteed: singular values at most one up to rounding. The module has no
    proof of its own; `bronet.check` bounds the weight it ends with.

    Args:
        name: of the parameter, a matrix.
        rank: n columns of V, 1 <= n < m = max(rows, columns); default m // 2, or the smaller side where they differ.
        ridge: relative ridge on V'V; the published ones by default, smaller for square matrices.
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise BronetError(f"{name!r} must be a parameter of {type(module).__name__}, which has none of this name")
    if weight.ndim != 2:
        shape = tuple(weight.shape)
        raise BronetError(f"{name} must be a matrix, got shape {shape}; for convolutions use bronet.BROConv2d")
    rows, columns = weight.shape
    n = reflected_rank(rank, columns, rows)
    relative = ridge if ridge is not None else (BRO_RIDGE if rows == columns else SEMI_ORTHOGONAL_RIDGE)
    require_ridge(relative)
    # V has another shape than W, which torch allows only where it need not check a round trip.
    register_parametrization(module, name, BlockReflector(rows, columns, rank=n, ridge=relative), unsafe=True)
    return module
