"""The block reflector W = I - 2 V (V*V)^-1 V* (Proposition 1), materialised.

This is the definition that everything else is tested against; no layer forms W. A relative ridge is added to
V*V, so that W exists for every V; with it W is a contraction instead of exactly orthogonal.
"""

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from bronet.ortho.spd import BRO_RIDGE, ridge_of, unit_scaled


def block_reflector(V: Inexact[Tensor, "*batch m n"], *, ridge: float = BRO_RIDGE) -> Inexact[Tensor, "*batch m m"]:
    """Return W = I - 2 V (V*V + e I)^-1 V* of real or complex V.

    With e = 0 and V of full column rank W is unitary and Hermitian with n eigenvalues -1 and m - n eigenvalues 1;
    `ridge` scales e, relative to the mean diagonal of V*V.
    """
    m, n = V.shape[-2:]
    eye = torch.eye(m, dtype=V.dtype, device=V.device)
    V = _unit_scaled(V)
    gram = V.mH @ V
    e = ridge_of(gram.diagonal(dim1=-2, dim2=-1).real, ridge, gram.real.dtype)
    gram = gram + e[..., None, None] * torch.eye(n, dtype=V.dtype, device=V.device)
    return eye - 2 * V @ torch.linalg.solve(gram, V.mH)


def _unit_scaled(V: Inexact[Tensor, "*batch m n"]) -> Inexact[Tensor, "*batch m n"]:
    if V.is_complex():
        return torch.view_as_complex(unit_scaled(torch.view_as_real(V)))
    return unit_scaled(V)


def reflect(
    x: Float[Tensor, "*batch c_in b"],
    V: Float[Tensor, "c n"],
    inverse: Float[Tensor, "n n"],
    *,
    c_out: int,
) -> Float[Tensor, "*batch c_out b"]:
    """Return the semi-orthogonal reflector times x, never formed: E x - 2 V[:c_out] S^-1 V[:c_in]' x (App. A.3)."""
    low_rank = V[:c_out] @ (inverse @ (V[: x.shape[-2]].mT @ x))
    return embed_channels(x, c_out, dim=-2) - 2 * low_rank


def embed_channels(x: Tensor, c_out: int, *, dim: int) -> Tensor:
    """Return E x: the first c_out channels of x, or x with zero channels appended."""
    c_in = x.shape[dim]
    if c_out <= c_in:
        return x.narrow(dim, 0, c_out)
    zeros = x.new_zeros([c_out - c_in if d == dim % x.ndim else size for d, size in enumerate(x.shape)])
    return torch.cat((x, zeros), dim=dim)
