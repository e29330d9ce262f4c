"""Muon (Jordan et al., 2024): momentum whose direction is orthogonalised, for the matrices of orthogonal layers.

Every singular direction of a matrix then moves equally far, whatever its share of the gradient. Not the paper's: an
option (docs/training.md). What changes from step to step lies on the device, so that a recorded step can be replayed.

The direction comes from a quintic Newton-Schulz iteration, which keeps the singular vectors. Its polynomial is chosen
for speed and not for convergence: small singular values grow quickly, and then move about near one.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import Parameter

from bronet.layers.execution import DerivedLayer, side_by_side
from bronet.layers.head import Head
from bronet.models import CertifiableModel

if TYPE_CHECKING:
    from bronet.training.optimizers import Optimizer

# The root mean square of an update, per learning rate: near that of Adam's, so that one rate serves both.
_UPDATE_SIZE = 0.2
_MATRIX_DIMENSIONS = (2, 4)
_NEWTON_SCHULZ_STEPS = 5
# x -> a x + b x^3 + c x^5 on each singular value: the slope a at zero is what decides how small values may be.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
# Added to the norm, so that a matrix of zeros stays one; gradients of about this size come out shorter.
_SMALLEST_NORM = 1e-7


def muon_matrices(model: CertifiableModel) -> list[Parameter]:
    """Return the parameters of the model that Muon orthogonalises, in its order.

    They are the matrices (m, n) and kernels (m, n, k, k) of layers before the head that derive their map from them
    (`DerivedLayer`): BRO, Cholesky and their rivals. Layers whose kernel is used as stored and only regularised
    (BRONet's stem, LiResNet's backbone) are left to NAdam with everything else.
    """
    layers = [part for part in model.modules() if isinstance(part, DerivedLayer) and not part.only_regularized]
    derived = {p for layer in layers for p in layer.parameters() if p.ndim in _MATRIX_DIMENSIONS}
    derived -= {p for part in model.modules() if isinstance(part, Head) for p in part.parameters()}
    return [p for p in model.parameters() if p in derived]


class Muon:
    """Muon on `matrices`, and another optimiser, NAdam, on the other parameters.

    M <- momentum M + G, where G is the gradient with coupled weight decay; then the matrix moves by the learning rate
    times 0.2 sqrt(max(m, n)) times Newton-Schulz of G + momentum M, a kernel as m x n k k. Matrices of one shape are
    orthogonalised in one batch, on a GPU in bf16 and beside other batches.
    """

    def __init__(
        self, matrices: Sequence[Parameter], others: "Optimizer", *, momentum: float, weight_decay: float
    ) -> None:
        self.matrices, self.others = list(matrices), others
        self.momentum, self.weight_decay = momentum, weight_decay
        self.rate = torch.zeros((), device=self.matrices[0].device)
        self.momenta = [torch.zeros_like(matrix) for matrix in self.matrices]

    def prepare(self, rate: float) -> None:
        self.rate.fill_(rate)
        self.others.prepare(rate)

    @torch.no_grad()
    def step(self) -> None:
        batches: dict[tuple[torch.Size, torch.dtype], list[tuple[Tensor, Tensor, Tensor]]] = defaultdict(list)
        for matrix, momentum in zip(self.matrices, self.momenta, strict=True):
            if matrix.grad is not None:
                batches[matrix.flatten(1).shape, matrix.dtype].append((matrix, matrix.grad, momentum))
        tasks = [partial(self._step_on, *map(list, zip(*batch, strict=True))) for batch in batches.values()]
        side_by_side([*tasks, self.others.step], self.rate.device)

    def _step_on(self, matrices: list[Tensor], gradients: list[Tensor], momenta: list[Tensor]) -> None:
        """Update matrices of one shape."""
        if self.weight_decay:
            gradients = list(torch._foreach_add(gradients, matrices, alpha=self.weight_decay))
        torch._foreach_mul_(momenta, self.momentum)
        torch._foreach_add_(momenta, gradients)
        ahead = torch._foreach_add(gradients, momenta, alpha=self.momentum)
        stacked = torch.stack([direction.flatten(1) for direction in ahead])
        precision = torch.bfloat16 if stacked.is_cuda else torch.promote_types(torch.float32, stacked.dtype)
        directions = newton_schulz(stacked, dtype=precision).to(stacked.dtype)
        updates = directions * (self.rate * _UPDATE_SIZE * math.sqrt(max(stacked.shape[1:])))
        torch._foreach_sub_(matrices, [update.view(p.shape) for update, p in zip(updates, matrices, strict=True)])

    def tensors(self) -> dict[str, Tensor]:
        momenta = {f"{index}.momentum": momentum for index, momentum in enumerate(self.momenta)}
        return momenta | {f"others.{name}": tensor for name, tensor in self.others.tensors().items()}


def newton_schulz(G: Float[Tensor, "batch m n"], *, dtype: torch.dtype) -> Float[Tensor, "batch m n"]:
    """Return matrices with the singular vectors of each G and singular values in [0.68, 1.14], in this precision.

    That range is the polynomial's where a singular value of G is 1/100 of its Frobenius norm or more. Down to 1/600 the
    result is at most 1.21; below, values grow by a factor of at most a^5 = 485, and zeros stay zeros.
    """
    a, b, c = _COEFFICIENTS
    # Divided before rounding: the squares of a gradient may not exist in half precision.
    X = (G / (torch.linalg.matrix_norm(G, keepdim=True) + _SMALLEST_NORM)).to(dtype)
    tall = X.shape[-2] > X.shape[-1]
    X = X.mT if tall else X
    for _ in range(_NEWTON_SCHULZ_STEPS):
        A = X @ X.mT
        B = torch.baddbmm(A, A, A, beta=b, alpha=c)
        X = torch.baddbmm(X, B, X, beta=a)
    return X.mT if tall else X
