"""The dense block reflector as a parametrization, in the style of torch.nn.utils.parametrizations.orthogonal.

For the weights of modules that are not ours. W is formed, unlike in `BROLinear`: m n^2 operations and an m x m matrix,
m the larger side. A parametrized module has no proof of its own; `bronet.check` bounds the weight it ends with.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from bronet.errors import BronetError
from bronet.layers.base import reflected_rank, require_ridge, without_autocast
from bronet.ortho.reflector import dense_inverse
from bronet.ortho.spd import BRO_RIDGE, SEMI_ORTHOGONAL_RIDGE, unit_scaled


class BlockReflector(nn.Module):
    """V -> the first rows and columns of I - 2 V (V'V)^-1 V', so many as the weight has.

    Guaranteed: singular values at most one, for every V, up to rounding; all equal to one where V has full rank, up to
    the ridge: rows or columns, whichever are fewer, are orthonormal. Computed in float32 or better, outside autocast.
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

    Guaranteed and not: see `BlockReflector`. The parameter is then `module.parametrizations.<name>.original`, V.

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
