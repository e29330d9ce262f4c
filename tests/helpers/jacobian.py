"""The explicit Jacobian of a map between images, for tests that look at singular values."""

from collections.abc import Callable

import torch
from torch import Tensor


def jacobian(function: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Tensor:
    """Return the matrix of a linear map on one image of this shape: column i is the image of unit vector i."""
    inputs = int(torch.Size(shape).numel())
    basis = torch.eye(inputs, dtype=torch.float64).view(inputs, *shape)
    with torch.no_grad():
        offset = function(torch.zeros(1, *shape, dtype=torch.float64))
        return (function(basis) - offset).flatten(1).mT


def singular_values(function: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Tensor:
    """Return the singular values of the Jacobian, as many as there are inputs or outputs, whichever is less."""
    return torch.linalg.svdvals(jacobian(function, shape))
