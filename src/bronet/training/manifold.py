"""Adam on orthogonal matrices, as LipNeXt is trained (arXiv 2601.18513), and another optimiser on everything else.

For an orthogonal X with gradient G the direction lies in the tangent space, A = (X'G - G'X) / 2, which is skew. Adam's
moments are of A, entry by entry, so that the step D = -rate m / (sqrt(v) + eps) is skew, too, and X exp(D) orthogonal.
Lookahead moves along the same curves: X_slow <- X_slow exp(alpha times the sum of the last D).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import Parameter

from bronet.layers.lipnext import OrthogonalMix
from bronet.models import CertifiableModel

if TYPE_CHECKING:
    from bronet.training.optimizers import Optimizer

_BETAS = (0.9, 0.999)
_EPS = 1e-8
# The order of the Taylor series below each Frobenius norm of D; beyond the last the exponential is exact.
_SERIES = ((0.05, 2), (0.25, 3), (1.0, 4))
_MOMENTS = ("first", "second", "slow", "sum")


def orthogonal_matrices(model: CertifiableModel) -> list[Parameter]:
    """Return the parameters of the model that lie on the orthogonal manifold."""
    return [part.weight for part in model.modules() if isinstance(part, OrthogonalMix)]


class ManifoldAdam:
    """Adam on orthogonal `matrices`, and another optimiser on the other parameters.

    Guaranteed: after every step float32 matrices are orthogonal to a few ulps, those of float64 to 1e-10. The paper
    returns to the manifold at the end of an epoch, by the polar factor; here Newton steps towards it follow every step.
    """

    def __init__(
        self, matrices: Sequence[Parameter], others: "Optimizer", *, lookahead_steps: int, lookahead_alpha: float
    ) -> None:
        self.matrices, self.others = list(matrices), others
        self.lookahead_steps, self.lookahead_alpha = lookahead_steps, lookahead_alpha
        self.rate, self.taken = 0.0, torch.zeros((), dtype=torch.int64)
        zeros = {name: [torch.zeros_like(matrix) for matrix in self.matrices] for name in _MOMENTS}
        self.state = zeros | {"slow": [matrix.detach().clone() for matrix in self.matrices]}

    def prepare(self, rate: float) -> None:
        self.rate = rate
        self.others.prepare(rate)

    @torch.no_grad()
    def step(self) -> None:
        self.others.step()
        self.taken += 1
        taken = int(self.taken)
        for matrix, first, second, slow, sum_of_steps in zip(self.matrices, *self.state.values(), strict=True):
            if matrix.grad is None:
                continue
            product = matrix.mT @ matrix.grad
            A = (product - product.mT) / 2
            first.lerp_(A, 1 - _BETAS[0])
            second.lerp_(A.square(), 1 - _BETAS[1])
            mean, square = first / (1 - _BETAS[0] ** taken), second / (1 - _BETAS[1] ** taken)
            D = -self.rate * mean / (square.sqrt() + _EPS)
            matrix.copy_(retracted(matrix @ fast_exponential(D)))
            if self.lookahead_steps:
                sum_of_steps.add_(D)
                if taken % self.lookahead_steps == 0:
                    slow.copy_(retracted(slow @ fast_exponential(self.lookahead_alpha * sum_of_steps)))
                    matrix.copy_(slow)
                    sum_of_steps.zero_()

    def tensors(self) -> dict[str, Tensor]:
        own = {f"{index}.{name}": t for name, kept in self.state.items() for index, t in enumerate(kept)}
        others = {f"others.{name}": tensor for name, tensor in self.others.tensors().items()}
        return own | {"taken": self.taken} | others


def fast_exponential(D: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """Return exp(D) by a Taylor series of order 2, 3 or 4 where D is short, and exactly where it is not.

    The error is at most |D|^(k + 1) / (k + 1)! for a skew D of Frobenius norm |D| and the series of order k.
    """
    size = float(torch.linalg.matrix_norm(D))
    order = next((order for limit, order in _SERIES if size < limit), None)
    if order is None:
        return torch.linalg.matrix_exp(D)
    eye = torch.eye(D.shape[-1], dtype=D.dtype, device=D.device)
    total = eye + D / order
    for k in range(order - 1, 0, -1):  # Horner
        total = eye + (D @ total) / k
    return total


def retracted(X: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """Return X nearer to its polar factor, by two Newton steps: singular values 1 + e become one up to 5 e^4."""
    for _ in range(2):
        X = 1.5 * X - 0.5 * X @ (X.mT @ X)
    return X
