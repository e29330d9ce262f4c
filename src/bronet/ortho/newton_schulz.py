"""The quintic Newton-Schulz iteration that Muon takes the direction of a gradient with (Jordan et al., 2024).

It replaces every singular value of a matrix by a number near one and keeps the singular vectors. The polynomial is
chosen for speed and not for convergence: it blows small values up quickly and then lets them dance around one.
"""

import torch
from jaxtyping import Float
from torch import Tensor

STEPS = 5
# x -> a x + b x^3 + c x^5 on each singular value: the slope a at zero is what decides how small values may be.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
# Added to the norm, so that a matrix of zeros stays one; gradients of about this size come out shorter.
SMALLEST_NORM = 1e-7


def newton_schulz(G: Float[Tensor, "batch m n"], *, dtype: torch.dtype) -> Float[Tensor, "batch m n"]:
    """Return matrices with the singular vectors of each G and singular values in [0.68, 1.14], in this precision.

    That range is the polynomial's where a singular value of G is 1/100 of its Frobenius norm or more. Down to 1/600 the
    result is at most 1.21; below, values grow by a factor of at most a^5 = 485, and zeros stay zeros.
    """
    a, b, c = COEFFICIENTS
    # Divided before rounding: the squares of a gradient may not exist in half precision.
    X = (G / (torch.linalg.matrix_norm(G, keepdim=True) + SMALLEST_NORM)).to(dtype)
    tall = X.shape[-2] > X.shape[-1]
    X = X.mT if tall else X
    for _ in range(STEPS):
        A = X @ X.mT
        B = torch.baddbmm(A, A, A, beta=b, alpha=c)
        X = torch.baddbmm(X, B, X, beta=a)
    return X.mT if tall else X
