"""LOT's map (V V*)^-1/2 V by the coupled Newton-Schulz iteration (Xu et al. 2022), real or complex, batched.

In exact arithmetic every step is a contraction that tends to an orthogonal matrix; how fast depends on the condition of
V, and a singular V never arrives (App. D.9 of the paper, Figure 13). Nothing here promises orthogonality after a given
number of steps: measure it. The published code adds 1e-4 to the diagonal of V V*, whose limit is no orthogonal matrix;
the layer here does not, and `lot_iterates` can do both.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Inexact
from torch import Tensor

from bronet.ortho.spd import scale_of

# Steps and ridge of the published layer.
LOT_STEPS = 10
LOT_RIDGE = 1e-4


def lot_orthogonal(V: Inexact[Tensor, "*batch m n"], *, steps: int = LOT_STEPS) -> Inexact[Tensor, "*batch m n"]:
    """Return (V V*)^-1/2 V after this many Newton steps: semi-orthogonal in the limit, for V of full rank."""
    if V.shape[-2] > V.shape[-1]:
        return lot_orthogonal(V.mH, steps=steps).mH
    V, S = _scaled(V)
    *_, root = inverse_square_roots(S, steps=steps)
    return root @ V


def lot_iterates(
    V: Inexact[Tensor, "*batch m n"], *, steps: int, ridge: float = 0.0
) -> Iterator[Inexact[Tensor, "*batch m n"]]:
    """Yield (V V* + ridge I)^-1/2 V after 1, 2, ..., `steps` Newton steps; V must have no more rows than columns."""
    V, S = _scaled(V, ridge)
    for root in inverse_square_roots(S, steps=steps):
        yield root @ V


def inverse_square_roots(S: Inexact[Tensor, "*batch m m"], *, steps: int) -> Iterator[Inexact[Tensor, "*batch m m"]]:
    """Yield Z_1, Z_2, ... with Z_k -> S^-1/2, for S of norm at most one: Y <- Y T, Z <- T Z, T = (3 I - Z Y) / 2."""
    eye = torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)
    Y, Z = S, eye.expand_as(S)
    for _ in range(steps):
        T = 1.5 * eye - 0.5 * (Z @ Y)
        Y, Z = Y @ T, T @ Z
        yield Z


def _scaled(V: Inexact[Tensor, "*batch m n"], ridge: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return V divided by the root of |V V* + ridge I|, the Frobenius norm, and that matrix likewise.

    Each matrix has its own scale, which (V V*)^-1/2 V cannot see; V = 0 stays 0.
    """
    scale = scale_of(V)
    V = V / scale
    eye = torch.eye(V.shape[-2], dtype=V.dtype, device=V.device)
    S = V @ V.mH + (ridge / scale**2) * eye if ridge else V @ V.mH
    size = torch.linalg.matrix_norm(S, keepdim=True).clamp_min(torch.finfo(S.real.dtype).tiny)
    return V / size.sqrt(), S / size
