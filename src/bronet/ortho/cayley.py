"""The Cayley transform (Trockman and Kolter 2021), for square and tall matrices, real or complex.

Orthonormal columns for every parameter, up to rounding: I + A with A skew plus positive semidefinite is never singular.
It reaches no matrix with an eigenvalue -1. Parameters that are so large that I is lost in I + A are scaled back.
"""

import torch
from jaxtyping import Inexact
from torch import Tensor


def cayley(P: Inexact[Tensor, "*batch m n"]) -> Inexact[Tensor, "*batch m n"]:
    """Return a matrix with orthonormal columns (rows, where m < n) from a free parameter.

    Square: (I - A)(I + A)^-1 with A = P - P*. Tall, P = (U, V) stacked: the first n columns of the Cayley transform of
    the skew matrix [[U - U*, -V*], [V, 0]], which needs one n x n solve: A = U - U* + V*V gives
    ((I - A)(I + A)^-1, -2 V (I + A)^-1).

    Matrices with an entry beyond eps^(-1/3), 2e2 in float32 and 2e5 in float64, are scaled back to that: A would square
    it, and I + A be singular to working precision.
    """
    m, n = P.shape[-2:]
    if m < n:
        return cayley(P.mH).mH
    largest = torch.finfo(P.real.dtype).eps ** (-1 / 3)
    P = P * (largest / P.abs().amax(dim=(-2, -1), keepdim=True).clamp_min(largest))
    U, V = P[..., :n, :], P[..., n:, :]
    A = U - U.mH + V.mH @ V
    eye = torch.eye(n, dtype=P.dtype, device=P.device)
    # (I - A)(I + A)^-1 = 2 (I + A)^-1 - I, so one inverse serves both parts.
    inverse = torch.linalg.inv_ex(eye + A).inverse
    return torch.cat((2 * inverse - eye, -2 * V @ inverse), dim=-2)
