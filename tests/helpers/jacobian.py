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


def largest_stretch(function: Callable[[Tensor], Tensor], images: Tensor) -> float:
    """Return the largest singular value of the Jacobians of logits at these images, whose rows are gradients."""
    x = images.clone().requires_grad_()
    logits = function(x)
    rows = [torch.autograd.grad(logit.sum(), x, retain_graph=True)[0].flatten(1) for logit in logits.unbind(1)]
    return float(torch.linalg.matrix_norm(torch.stack(rows, 1), 2).max())
