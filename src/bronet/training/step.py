"""One optimiser step: forward, loss, backward, clip, update, statistics; on a GPU recorded once and replayed.

Everything that changes from step to step (pixels, labels, learning rate, EMMA's budget, the step's number) lies in
tensors that are filled before the step, so that the device's work is the same sequence of kernels each time: after a
few ordinary steps a CUDA graph of it is recorded, and later steps launch that. On a CPU the same code just runs.
"""

from contextlib import nullcontext

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from bronet import losses
from bronet.graph.model import recordable
from bronet.layers.base import LipschitzLayer
from bronet.layers.execution import SideStream
from bronet.models import CertifiableModel
from bronet.ortho.products import float32_products
from bronet.recipe.schema import LossRecipe, Recipe, parse_budget
from bronet.training.average import Lookahead
from bronet.training.distributed import is_sharded, part_of
from bronet.training.manifold import orthogonal_matrices
from bronet.training.muon import muon_matrices
from bronet.training.optimizers import build_optimizer
from bronet.training.statistics import Tally
from bronet.training.teacher import new_teacher

# Ordinary steps before the recording: libraries choose their algorithms, the optimiser makes its state.
_WARM_UP = 3
_NORM_EPS = 1e-6  # torch's, where it clips


class TrainStep:
    """The step of a recipe on a model; call it with the inputs of each step in turn.

    It holds the recipe's optimiser, Lookahead and teacher, which has learned nothing yet. Several processes, those of
    the tally, exchange numbers within a step, which is then not recorded.
    """

    def __init__(
        self, recipe: Recipe, model: CertifiableModel, tally: Tally, *, forward: nn.Module | None = None
    ) -> None:
        optim = recipe.optim
        self.recipe, self.model, self.tally = recipe, model, tally
        self.forward = forward if forward is not None else TrainingForward(model, recipe)
        self.parameters = list(model.parameters())
        choices = {"muon": muon_matrices, "manifold": orthogonal_matrices}
        matrices = choices[optim.name](model) if optim.name in choices else []
        self.optimizer = build_optimizer(optim, self.parameters, matrices=matrices)
        steps, alpha = optim.lookahead_steps, optim.lookahead_alpha
        apart = set(matrices if optim.name == "manifold" else ())  # have a Lookahead of their own
        averaged = [parameter for parameter in self.parameters if parameter not in apart]
        self.lookahead = Lookahead(averaged, steps=steps, alpha=alpha) if steps else None
        self.device = tally.sums.device
        self.teacher = new_teacher(recipe, self.device) if recipe.loss.teacher else None
        self.eps = torch.zeros((), device=self.device)
        self.number = torch.zeros((), device=self.device, dtype=torch.float64)
        self.inputs: tuple[Tensor, Tensor] | None = None  # of the recording
        self.recordable = tally.processes.world == 1 and recordable(model)
        self.ordinary_steps = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, pixels: Tensor, labels: Tensor, *, number: int, learning_rate: float, emma_eps: float) -> None:
        """Take one step: the work is queued on the device."""
        self.optimizer.prepare(learning_rate)
        self.eps.fill_(emma_eps)
        self.number.fill_(number)
        if self.device.type == "cuda" and self.recordable:
            self._replay(pixels, labels)
        else:
            self._compute(pixels, labels)
        if self.lookahead is not None:
            self.lookahead.after_step()

    def _replay(self, pixels: Tensor, labels: Tensor) -> None:
        """Replay the recorded step; before that take a few on a side stream, as recording asks for, and record one."""
        self.inputs = self.inputs or (pixels.clone(), labels.clone())
        self.inputs[0].copy_(pixels)
        self.inputs[1].copy_(labels)
        if self.ordinary_steps < _WARM_UP:
            side = SideStream(self.device)
            with side():
                self._compute(*self.inputs)
            side.wait()
            self.ordinary_steps += 1
            return
        if self.graph is None:
            self.model.zero_grad(set_to_none=True)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):  # recording does not compute
                self._compute(*self.inputs)
        self.graph.replay()
        torch.autograd.graph.increment_version(self.parameters)

    def _compute(self, pixels: Tensor, labels: Tensor) -> None:
        with float32_products(tf32=self.recipe.train.precision == "bf16"):
            logits, gap = self.forward(pixels)
            loss = self.loss(pixels, labels, logits, gap, self.eps)
            self.model.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            norm = self._clip(self.recipe.optim.clip_norm)
            self.optimizer.step()
        self.tally.add(logits, labels, gap, step=self.number, loss=loss.detach(), gradient_norm=norm)

    def loss(
        self, pixels: Tensor, labels: Tensor, logits: Tensor, gap: Tensor, eps: Tensor | float
    ) -> Float[Tensor, ""]:
        """Return what the recipe minimises, its choice among `bronet.losses`, on plain or EMMA logits.

        With a teacher it is the mean over labels drawn from the probabilities of teacher and label.
        """
        recipe, weights = self.recipe.loss, None
        if self.teacher is not None:
            targets = self.teacher.targets(pixels, labels, share=recipe.teacher)
            logits, labels, weights = losses.drawn_labels(logits, targets)
        if recipe.emma:
            logits = losses.emma(logits, labels, gap, eps=eps)
        if recipe.name == "la":
            shape = {"temperature": recipe.temperature, "offset": recipe.offset, "beta": recipe.beta}
            loss = losses.logit_annealing(logits, labels, weights=weights, **shape)
        elif recipe.name == "ce":
            loss = losses.cross_entropy(logits, labels)
        elif recipe.cr == "margin":
            loss = losses.certificate_regularization(logits, labels, gamma=recipe.gamma)
        else:
            loss = losses.certificate_regularization_radius(logits, labels, gap, gamma=recipe.gamma)
        return recipe.scale * loss

    def _clip(self, largest: float | None) -> Float[Tensor, ""]:
        """Scale the gradient down to norm `largest` where it is longer, and return the norm it had."""
        gradients = [part_of(p.grad) for p in self.parameters if p.grad is not None]
        norm = get_total_norm(gradients)
        if any(is_sharded(parameter) for parameter in self.parameters):
            norm = self.tally.processes.sum(norm.square()).sqrt()
        if largest is not None:
            torch._foreach_mul_(gradients, (largest / (norm + _NORM_EPS)).clamp(max=1.0))
        return norm


class TrainingForward(nn.Module):
    """Pixels -> (logits, gap): refreshes the norm estimates, then runs the model in the recipe's precision.

    One module, because data-parallel and sharded training see only what happens inside a module's forward. On a GPU the
    estimates are refreshed `in_parallel` to the model's forward pass, where that does not read them.
    """

    def __init__(self, model: CertifiableModel, recipe: Recipe, *, in_parallel: bool = True) -> None:
        super().__init__()
        self.model = model
        self.power_iterations = recipe.train.power_iterations
        self.in_bf16 = recipe.train.precision == "bf16"
        loss = recipe.loss
        self.gap_has_gradient = loss.emma or (loss.name == "ce+cr" and loss.cr == "radius")
        layers = (part for part in model.modules() if isinstance(part, LipschitzLayer))
        self.estimates_in_parallel = in_parallel and not any(layer.forward_uses_estimate for layer in layers)

    def forward(self, pixels: Float[Tensor, "b c h w"]) -> tuple[Float[Tensor, "b k"], Float[Tensor, "k k"]]:
        estimates = SideStream(pixels.device)
        with estimates() if self.estimates_in_parallel else nullcontext():
            self.model.update_estimates(self.power_iterations)
        with torch.autocast(pixels.device.type, dtype=torch.bfloat16, enabled=self.in_bf16, cache_enabled=False):
            logits = self.model(pixels)
        estimates.wait()
        with torch.set_grad_enabled(self.gap_has_gradient and torch.is_grad_enabled()):
            gap = self.model.gap_lipschitz()
        return logits, gap


def emma_budget(recipe: LossRecipe, *, step: int, total_steps: int) -> float:
    """Return EMMA's eps in a step, counted from 0: linear over the first `emma_ramp` of training."""
    start, target = parse_budget(recipe.emma_start_eps), parse_budget(recipe.emma_eps)
    ramp_steps = recipe.emma_ramp * total_steps
    return target if step >= ramp_steps else start + (target - start) * step / ramp_steps
