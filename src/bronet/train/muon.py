"""Muon (Jordan et al., 2024): momentum whose direction is orthogonalised, for the matrices of orthogonal layers.

Every singular direction of a matrix then moves equally far, whatever its share of the gradient. All other parameters
get NAdam. Not the paper's: an option (docs/training.md). What changes from step to step lies on the device, so that a
recorded step can be replayed.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import NAdam, Optimizer

from bronet.layers.base import DerivedLayer
from bronet.layers.execution import side_by_side
from bronet.models import CertifiableModel
from bronet.ortho.newton_schulz import newton_schulz
from bronet.train.nadam import FusedNAdam

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


class Muon(Optimizer):
    """Muon on `matrices`, and on all other `parameters` the given NAdam, whose state is part of this optimiser's.

    M <- momentum M + G, where G is the gradient with coupled weight decay; then the matrix moves by the learning rate
    times 0.2 sqrt(max(m, n)) times Newton-Schulz of G + momentum M, a kernel as m x n k k. Call `prepare` before every
    `step` whose rate is new. Matrices of one shape are orthogonalised in one batch, on a GPU in bf16 and
    beside other batches.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        others: NAdam,
        *,
        matrices: Sequence[Parameter],
        lr: float,
        momentum: float,
        weight_decay: float,
    ) -> None:
        super().__init__(parameters, {})
        self.matrices, self.others = list(matrices), others
        self.momentum, self.weight_decay = momentum, weight_decay
        self.rate = torch.tensor(lr, device=self.matrices[0].device)
        self.state = others.state  # one for both: what is restored into the one is restored into the other

    def part_for(self, parameter: Tensor) -> Optimizer:
        """Return the optimiser that steps on a parameter: this one, or NAdam."""
        return self if any(parameter is matrix for matrix in self.matrices) else self.others

    def prepare(self, lr: float) -> None:
        """Use this learning rate in the next step; nothing is waited for."""
        self.rate.fill_(lr)
        if isinstance(self.others, FusedNAdam):
            self.others.prepare(lr)
        else:
            self.others.param_groups[0]["lr"] = lr

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        batches: dict[tuple[torch.Size, torch.dtype], list[Tensor]] = defaultdict(list)
        for matrix in self.matrices:
            if matrix.grad is not None:
                batches[matrix.flatten(1).shape, matrix.dtype].append(matrix)
        tasks = [partial(self._step_on, batch) for batch in batches.values()]
        side_by_side([*tasks, self.others.step], self.rate.device)

    def _step_on(self, matrices: list[Tensor]) -> None:
        """Update matrices of one shape."""
        gradients = [matrix.grad for matrix in matrices if matrix.grad is not None]
        if self.weight_decay:
            gradients = list(torch._foreach_add(gradients, matrices, alpha=self.weight_decay))
        momenta = [self._momentum_of(matrix) for matrix in matrices]
        torch._foreach_mul_(momenta, self.momentum)
        torch._foreach_add_(momenta, gradients)
        ahead = torch._foreach_add(gradients, momenta, alpha=self.momentum)
        stacked = torch.stack([direction.flatten(1) for direction in ahead])
        precision = torch.bfloat16 if stacked.is_cuda else torch.promote_types(torch.float32, stacked.dtype)
        directions = newton_schulz(stacked, dtype=precision).to(stacked.dtype)
        updates = directions * (self.rate * _UPDATE_SIZE * math.sqrt(max(stacked.shape[1:])))
        torch._foreach_sub_(matrices, [update.view(p.shape) for update, p in zip(updates, matrices, strict=True)])

    def _momentum_of(self, matrix: Tensor) -> Tensor:
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        momentum: Tensor = state["momentum_buffer"]
        return momentum
