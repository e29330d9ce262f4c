"""Muon (Jordan et al., 2024): momentum whose direction is orthogonalised, for the matrices of orthogonal layers.

Every singular direction of a matrix then moves equally far, whatever its share of the gradient. All other parameters
get NAdam. Not the paper's: an option (docs/training.md). What changes from step to step lies on the device, so that a
recorded step can be replayed.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from bronet.layers.base import DerivedLayer
from bronet.layers.execution import side_by_side
from bronet.models import CertifiableModel
from bronet.ortho.newton_schulz import newton_schulz

if TYPE_CHECKING:
    from bronet.train.optimizers import Optimizer

_OTHERS = "others."
# The root mean square of an update, per learning rate: near that of Adam's, so that one rate serves both.
_UPDATE_SIZE = 0.2
_MATRIX_DIMENSIONS = (2, 4)


class Split(NamedTuple):
    """The parameters of a model: those whose update Muon orthogonalises, and the others."""

    matrices: list[Parameter]
    others: list[Parameter]


def split_parameters(model: CertifiableModel) -> Split:
    """Return every parameter of the model once, in its order: a matrix for Muon, or another one for NAdam.

    Muon gets the matrices (m, n) and kernels (m, n, k, k) that belong to a layer before the head which derives its map
    from them (`DerivedLayer`): BRO and Cholesky layers, and their rivals. NAdam gets the rest: the head, layers whose
    kernel is used as stored and only regularised (BRONet's stem, LiResNet's backbone), biases, alpha, angles of
    activations, stacks of matrices.
    """
    layers = (layer for _, layer in model.chain() if isinstance(layer, DerivedLayer))
    derived = {p for layer in layers for p in layer.parameters() if p.ndim in _MATRIX_DIMENSIONS}
    derived -= set(model.head.parameters())
    parameters = list(model.parameters())
    return Split([p for p in parameters if p in derived], [p for p in parameters if p not in derived])


class Muon:
    """Muon on `matrices`, and another optimiser, NAdam, on the other parameters.

    M <- momentum M + G, where G is the gradient with coupled weight decay; then the matrix moves by the learning rate
    times 0.2 sqrt(max(m, n)) times Newton-Schulz of G + momentum M, a kernel as m x n k k. Matrices of one shape are
    orthogonalised in one batch, on a GPU in bf16 and beside other batches.
    """

    def __init__(
        self,
        matrices: Sequence[Parameter],
        others: "Optimizer",
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
    ) -> None:
        self.matrices, self.others = list(matrices), others
        self.momentum, self.weight_decay = momentum, weight_decay
        self.rate = torch.tensor(lr, device=self.matrices[0].device)
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
        """Return the momentum of every matrix, and the other optimiser's state."""
        momenta = {f"{index}.momentum": momentum for index, momentum in enumerate(self.momenta)}
        return momenta | {_OTHERS + name: tensor for name, tensor in self.others.tensors().items()}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        for index, momentum in enumerate(self.momenta):
            momentum.copy_(tensors[f"{index}.momentum"])
        others = {name.removeprefix(_OTHERS): t for name, t in tensors.items() if name.startswith(_OTHERS)}
        self.others.load_tensors(others)
