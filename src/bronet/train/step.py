"""One optimiser step: forward, loss, backward, clip, update, statistics; on a GPU recorded once and replayed.

Everything that changes from step to step (pixels, labels, learning rate, EMMA's budget, the step's number) lies in
tensors that are filled before the step, so that the device's work is the same sequence of kernels each time: after a
few ordinary steps a CUDA graph of it is recorded, and later steps launch that. On a CPU the same code just runs.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from bronet.errors import BronetError
from bronet.layers.execution import Beside
from bronet.models import CertifiableModel
from bronet.ortho.numerics import float32_products
from bronet.recipe.schema import Recipe
from bronet.train.forward import TrainingForward
from bronet.train.lookahead import Lookahead
from bronet.train.objective import objective
from bronet.train.processes import Processes
from bronet.train.tally import Tally
from bronet.train.teacher import Teacher

# Ordinary steps before the recording: libraries choose their algorithms, the optimiser makes its state.
_WARM_UP = 3


class TrainStep:
    """The step of a recipe on a model; call it with the inputs of each step in turn.

    Several processes exchange numbers within a step, which is not recorded: `recorded` is then False. Where parameters
    are sharded, `sharded_over` are the processes that hold them. A recipe with a teacher needs one.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: CertifiableModel,
        optimizer: Lookahead,
        tally: Tally,
        *,
        forward: nn.Module | None = None,
        recorded: bool = True,
        sharded_over: Processes | None = None,
        teacher: Teacher | None = None,
    ) -> None:
        if (teacher is None) != (recipe.loss.teacher == 0):
            given = "none" if teacher is None else "one"
            raise BronetError(
                f"loss.teacher must be 0 without a teacher and more with one, got {recipe.loss.teacher} and {given}"
            )
        self.recipe, self.model, self.optimizer, self.tally = recipe, model, optimizer, tally
        self.forward = forward if forward is not None else TrainingForward(model, recipe)
        self.recorded, self.sharded_over, self.teacher = recorded, sharded_over, teacher
        self.device = next(model.parameters()).device
        self.eps = torch.zeros((), device=self.device)
        self.number = torch.zeros((), device=self.device, dtype=torch.float64)
        self.pixels: Tensor | None = None
        self.labels: Tensor | None = None
        self.recordable = recorded and model.recordable
        self.ordinary_steps = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(
        self,
        pixels: Float[Tensor, "b c h w"],
        labels: Int[Tensor, " b"],
        *,
        number: int,
        learning_rate: float,
        emma_eps: float,
    ) -> None:
        """Take one step. The work is queued on the device; nothing is waited for."""
        self.optimizer.set_learning_rate(learning_rate)
        self.eps.fill_(emma_eps)
        self.number.fill_(number)
        if self.device.type != "cuda" or not self.recordable:
            self._compute(pixels, labels)
        elif self.graph is not None and self.pixels is not None and self.labels is not None:
            self.pixels.copy_(pixels)
            self.labels.copy_(labels)
            self.graph.replay()
            torch.autograd.graph.increment_version(list(self.model.parameters()))
        else:
            self._on_the_way_to_a_graph(pixels, labels)
        self.optimizer.after_step()

    def targets(self, pixels: Float[Tensor, "b c h w"], labels: Int[Tensor, " b"]) -> Float[Tensor, "b k"] | None:
        """Return what the teacher makes of the labels; None where there is no teacher."""
        return None if self.teacher is None else self.teacher.targets(pixels, labels, share=self.recipe.loss.teacher)

    def _on_the_way_to_a_graph(self, pixels: Tensor, labels: Tensor) -> None:
        """Take an ordinary step on a side stream, as recording asks for; record after a few of them."""
        if self.pixels is None or self.labels is None:
            self.pixels, self.labels = pixels.clone(), labels.clone()
        self.pixels.copy_(pixels)
        self.labels.copy_(labels)
        if self.ordinary_steps < _WARM_UP:
            beside = Beside(self.device)
            with beside():
                self._compute(self.pixels, self.labels)
            beside.wait()
            self.ordinary_steps += 1
            return
        self.optimizer.zero_grad()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._compute(self.pixels, self.labels)
        self.graph.replay()  # recording does not compute

    def _compute(self, pixels: Tensor, labels: Tensor) -> None:
        recipe = self.recipe
        bf16 = recipe.train.precision == "bf16"
        with float32_products(tf32=bf16):
            logits, gap = self.forward(pixels)
            targets = self.targets(pixels, labels)
            loss = objective(recipe.loss, logits, labels, gap, emma_eps=self.eps, targets=targets)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            norm = self._clip(recipe.optim.clip_norm)
            self.optimizer.inner_step()
        self.tally.add(
            step=self.number, loss=loss.detach(), gradient_norm=norm, logits=logits, labels=labels, gap_lipschitz=gap
        )

    def _clip(self, largest: float | None) -> Float[Tensor, ""]:
        """Scale the gradient down to norm `largest` where it is longer, and return the norm it had."""
        parameters = self.optimizer.take_gradients()
        norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
        if self.sharded_over is not None:
            norm = self.sharded_over.sum(norm.square()).sqrt()
        if largest is not None:
            clip_grads_with_norm_(parameters, largest, norm)
        return norm
