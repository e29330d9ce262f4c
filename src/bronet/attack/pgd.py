"""Projected gradient ascent on the logit margin: in the l2 ball (L2-PGD) and in the l_inf ball.

An attack gives an upper bound on robust accuracy, as a certificate gives a lower one; between the two lies
what is not known. Deterministic given its generator. Failing to find an adversarial image proves nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bronet.attack.judge import per_image
from bronet.errors import BronetError
from bronet.losses import logit_margin

STEP_TRAVEL = 2.5
"""The default steps could cross the ball's radius this many times, the usual choice for PGD."""


class Attack(NamedTuple):
    """The strongest images found, whether each changes the prediction, and its distance from the original."""

    images: Float[Tensor, "b *pixels"]
    success: Bool[Tensor, " b"]
    distance: Float[Tensor, " b"]


def l2_pgd(
    model: Callable[[Tensor], Tensor],
    images: Float[Tensor, "b *pixels"],
    labels: Int[Tensor, " b"],
    *,
    eps: float | Float[Tensor, " b"],
    steps: int = 50,
    restarts: int = 1,
    step_size: float | None = None,
    generator: torch.Generator | None = None,
) -> Attack:
    """Search each image's l2 ball for an image that `model` does not give its label.

    Guaranteed: every image returned lies in [0, 1] and within eps of the original, in exact arithmetic on the
    stored numbers; the parameters of the model get no gradient. Not guaranteed: to find what exists.

    Args:
        model: images to logits; deterministic, in evaluation mode.
        images: pixels in [0, 1].
        labels: classes to leave; pass predictions to attack predictions.
        eps: radius of the ball, one for all images or one each.
        steps: ascent steps per restart.
        restarts: the first starts at the image, the others at random points of the ball.
        step_size: length of a step in pixel space; by default 2.5 eps / steps.
        generator: of the random starts.
    """
    search = _Search(L2, steps, restarts, step_size, generator)
    return search.run(model, images, labels, _checked_budget(images, eps))


def linf_pgd(
    model: Callable[[Tensor], Tensor],
    images: Float[Tensor, "b *pixels"],
    labels: Int[Tensor, " b"],
    *,
    eps: float | Float[Tensor, " b"],
    steps: int = 50,
    restarts: int = 1,
    step_size: float | None = None,
    generator: torch.Generator | None = None,
) -> Attack:
    """Search each image's l_inf ball, as `l2_pgd` searches the l2 ball; `distance` is the l_inf distance."""
    search = _Search(LINF, steps, restarts, step_size, generator)
    return search.run(model, images, labels, _checked_budget(images, eps))


@dataclass(frozen=True)
class _Search:
    """Projected ascent with restarts; the strongest image of all steps and restarts is kept."""

    ball: "_Ball"
    steps: int
    restarts: int
    step_size: float | None
    generator: torch.Generator | None

    def __post_init__(self) -> None:
        _at_least_one("steps", self.steps)
        _at_least_one("restarts", self.restarts)

    def run(
        self, model: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor, budget: Float[Tensor, " b"]
    ) -> Attack:
        ball, default = self.ball, STEP_TRAVEL * budget / self.steps
        stride = default if self.step_size is None else torch.full_like(budget, self.step_size)
        best, best_loss = images.detach().clone(), torch.full_like(budget, -torch.inf)
        for restart in range(self.restarts):
            current = images.detach() if restart == 0 else ball.start(images, budget, self.generator)
            for step in range(self.steps + 1):
                loss, gradient = _loss_and_gradient(model, current, labels)
                better = loss > best_loss
                best = torch.where(per_image(better, best), current, best)
                best_loss = torch.where(better, loss.double(), best_loss)
                if step < self.steps:
                    move = per_image(stride, current) * ball.direction(gradient.double())
                    current = ball.project(current.double() + move, images, budget)
        with torch.no_grad():
            success = model(best).argmax(dim=1) != labels
        return Attack(best, success, ball.length((best.double() - images.double()).flatten(1)))


def _loss_and_gradient(
    model: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor
) -> tuple[Float[Tensor, " b"], Float[Tensor, "b *pixels"]]:
    """Return minus the margin of each image, and its gradient in the pixels."""
    with torch.enable_grad():
        pixels = images.detach().requires_grad_()
        loss = -logit_margin(model(pixels), labels)
        (gradient,) = torch.autograd.grad(loss.sum(), pixels)
    return loss.detach(), gradient


def _project_l2(
    proposed: Float[Tensor, "b *pixels"], images: Float[Tensor, "b *pixels"], budget: Float[Tensor, " b"]
) -> Float[Tensor, "b *pixels"]:
    """Return the proposal moved into the ball and into [0, 1], in the dtype of the images.

    Storing a pixel of [0, 1] moves it by at most half an epsilon of its dtype, and clamping moves it towards
    the original, so a ball smaller by epsilon * sqrt(pixels) keeps the stored image inside the true one.
    """
    pixels = images[0].numel()
    # The norm itself is computed in float64, with a relative error below this.
    rounding = pixels * torch.finfo(torch.float64).eps
    reach = (budget * (1 - rounding) - torch.finfo(images.dtype).eps * pixels**0.5).clamp(min=0)
    delta = proposed - images.double()
    length = delta.flatten(1).norm(dim=1)
    shrink = torch.where(length > reach, reach / length.clamp(min=torch.finfo(torch.float64).tiny), 1.0)
    return (images.double() + per_image(shrink, delta) * delta).to(images.dtype).clamp(0, 1)


def _project_linf(
    proposed: Float[Tensor, "b *pixels"], images: Float[Tensor, "b *pixels"], budget: Float[Tensor, " b"]
) -> Float[Tensor, "b *pixels"]:
    """Return the proposal moved into the ball and into [0, 1]; a cube smaller by two epsilons survives storing."""
    reach = (budget - 2 * torch.finfo(images.dtype).eps).clamp(min=0)
    wide, limit = images.double(), per_image(reach, images)
    return torch.clamp(proposed, wide - limit, wide + limit).to(images.dtype).clamp(0, 1)


def _unit(wide: Float[Tensor, "b *pixels"]) -> Float[Tensor, "b *pixels"]:
    """Return the direction with length 1, and 0 where it vanishes."""
    length = wide.flatten(1).norm(dim=1).clamp(min=torch.finfo(torch.float64).tiny)
    return wide / per_image(length, wide)


def _start_l2(
    images: Float[Tensor, "b *pixels"], budget: Float[Tensor, " b"], generator: torch.Generator | None
) -> Float[Tensor, "b *pixels"]:
    """Return points drawn uniformly from the balls, then clamped to [0, 1]."""
    device = images.device if generator is None else generator.device
    normal = torch.randn(images.shape, generator=generator, dtype=torch.float64, device=device).to(images.device)
    share = torch.rand(images.shape[:1], generator=generator, dtype=torch.float64, device=device)
    length = budget * share.to(images.device) ** (1 / images[0].numel())
    return _project_l2(images.double() + per_image(length, normal) * _unit(normal), images, budget)


def _start_linf(
    images: Float[Tensor, "b *pixels"], budget: Float[Tensor, " b"], generator: torch.Generator | None
) -> Float[Tensor, "b *pixels"]:
    """Return points drawn uniformly from the cubes, then clamped to [0, 1]."""
    device = images.device if generator is None else generator.device
    share = 2 * torch.rand(images.shape, generator=generator, dtype=torch.float64, device=device) - 1
    return _project_linf(images.double() + per_image(budget, images) * share.to(images.device), images, budget)


class _Ball(NamedTuple):
    """What an attack needs to know of a norm: steepest direction, projection, random points, lengths of rows."""

    direction: Callable[[Tensor], Tensor]
    project: Callable[[Tensor, Tensor, Tensor], Tensor]
    start: Callable[[Tensor, Tensor, torch.Generator | None], Tensor]
    length: Callable[[Tensor], Tensor]


L2 = _Ball(_unit, _project_l2, _start_l2, lambda rows: rows.norm(dim=1))
LINF = _Ball(torch.sign, _project_linf, _start_linf, lambda rows: rows.abs().amax(dim=1))


def _checked_budget(images: Tensor, eps: float | Tensor) -> Float[Tensor, " b"]:
    """Return eps as one float64 number per image, after checking it and the pixels."""
    if images.ndim < 2 or images.numel() == 0:
        raise BronetError(f"images must have a batch axis and at least one pixel, got {tuple(images.shape)}")
    if not bool(((images >= 0) & (images <= 1)).all()):
        raise BronetError("images must have all pixels in [0, 1], got others or NaN; normalise inside the model")
    budget = torch.as_tensor(eps, dtype=torch.float64, device=images.device).expand(images.shape[0])
    if not bool(((budget >= 0) & budget.isfinite()).all()):
        raise BronetError(f"eps must be finite and at least 0, got {eps}")
    return budget


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise BronetError(f"{name} must be at least 1, got {value}")
