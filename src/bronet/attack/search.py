"""Searches for images near others that a network gives another class: projected gradient ascent, and AutoAttack.

An attack gives an upper bound on robust accuracy, as a certificate gives a lower one; between the two lies what is not
known. Deterministic given its generator. Failing to find an adversarial image proves nothing.

AutoAttack (standard: APGD-CE, APGD-T, FAB-T, Square; Tables 10 and 11) is an optional extra, the package pyautoattack.
It computes in float32 and may overstep eps by a rounding: `bronet.attack.judge` decides what counts.
"""

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bronet.errors import BronetError
from bronet.losses import logit_margin
from bronet.run.attack_rows import Norm

STEP_TRAVEL = 2.5
"""The steps could cross the ball's radius this many times, the usual choice for PGD."""
TINY = torch.finfo(torch.float64).tiny
MIN_TARGETED_CLASSES = 4
"""Below this AutoAttack's targeted loss (DLR) does not exist."""
SAME_LOGITS = 1e-4
"""Relative difference of logits that float32 may show between two runs of the same program."""
MAX_TARGETS = 9
"""Classes that the standard version aims at."""
UNTARGETED = ["apgd-ce", "fab-t", "square"]
"""What is left of the standard version where the targeted loss does not exist."""

Model = Callable[[Tensor], Tensor]
"""From images to logits."""


class Attack(NamedTuple):
    """The strongest images found, whether each changes the prediction, and its distance from the original."""

    images: Float[Tensor, "b *pixels"]
    success: Bool[Tensor, " b"]
    distance: Float[Tensor, " b"]


def pgd(
    model: Model,
    images: Float[Tensor, "b *pixels"],
    labels: Int[Tensor, " b"],
    *,
    norm: Norm,
    eps: float | Float[Tensor, " b"],
    steps: int = 50,
    restarts: int = 1,
    generator: torch.Generator | None = None,
) -> Attack:
    """Search each image's ball for an image that `model` does not give its label; the distance is in that norm.

    Guaranteed: every image returned lies in [0, 1] and within eps of the original, in exact arithmetic on the
    stored numbers; the parameters of the model get no gradient. Not guaranteed: to find what exists.

    It ascends with restarts, projects after each step, and keeps the strongest image of all steps and restarts.

    Args:
        model: images to logits; deterministic, in evaluation mode.
        images: pixels in [0, 1].
        labels: classes to leave; pass predictions to attack predictions.
        norm: of the ball, "l2" or "linf".
        eps: radius of the ball, one for all images or one each.
        steps: ascent steps per restart, each 2.5 eps / steps long.
        restarts: the first starts at the image, the others at random points of the ball.
        generator: of the random starts.
    """
    for name, value in (("steps", steps), ("restarts", restarts)):
        if value < 1:
            raise BronetError(f"{name} must be at least 1, got {value}")
    budget = _checked_budget(images, eps)
    stride = STEP_TRAVEL * budget / steps
    best, best_loss = images.detach().clone(), torch.full_like(budget, -torch.inf)
    for restart in range(restarts):
        current = images.detach() if restart == 0 else _random_start(images, budget, norm, generator)
        for step in range(steps + 1):
            loss, gradient = _loss_and_gradient(model, current, labels)
            better = loss > best_loss
            best = torch.where(per_image(better, best), current, best)
            best_loss = torch.where(better, loss.double(), best_loss)
            if step < steps:
                direction = _unit(gradient.double()) if norm == "l2" else gradient.double().sign()
                current = _project(current.double() + per_image(stride, current) * direction, images, budget, norm)
    with torch.no_grad():
        success = model(best).argmax(dim=1) != labels
    delta = (best.double() - images.double()).flatten(1)
    return Attack(best, success, delta.norm(dim=1) if norm == "l2" else delta.abs().amax(dim=1))


l2_pgd = partial(pgd, norm="l2")
"""`pgd` in l2 balls."""
linf_pgd = partial(pgd, norm="linf")
"""`pgd` in l_inf balls."""


def _loss_and_gradient(
    model: Model, images: Tensor, labels: Tensor
) -> tuple[Float[Tensor, " b"], Float[Tensor, "b *pixels"]]:
    """Return minus the margin of each image, and its gradient in the pixels."""
    with torch.enable_grad():
        pixels = images.detach().requires_grad_()
        loss = -logit_margin(model(pixels), labels)
        (gradient,) = torch.autograd.grad(loss.sum(), pixels)
    return loss.detach(), gradient


def _project(
    proposed: Float[Tensor, "b *pixels"], images: Float[Tensor, "b *pixels"], budget: Float[Tensor, " b"], norm: Norm
) -> Float[Tensor, "b *pixels"]:
    """Return the proposal moved into the ball and into [0, 1], in the dtype of the images.

    Storing a pixel of [0, 1] moves it by at most half an epsilon of its dtype, and clamping moves it towards the
    original, so an l2 ball smaller by epsilon * sqrt(pixels), or a cube smaller by two epsilons, keeps the stored image
    inside the true one.
    """
    wide, epsilon, pixels = images.double(), torch.finfo(images.dtype).eps, images[0].numel()
    if norm == "linf":
        limit = per_image((budget - 2 * epsilon).clamp(min=0), images)
        moved = torch.clamp(proposed, wide - limit, wide + limit)
    else:
        # The norm itself is computed in float64, with a relative error below this.
        rounding = pixels * torch.finfo(torch.float64).eps
        reach = (budget * (1 - rounding) - epsilon * pixels**0.5).clamp(min=0)
        delta = proposed - wide
        length = delta.flatten(1).norm(dim=1)
        shrink = torch.where(length > reach, reach / length.clamp(min=TINY), 1.0)
        moved = wide + per_image(shrink, delta) * delta
    return moved.to(images.dtype).clamp(0, 1)


def _random_start(
    images: Float[Tensor, "b *pixels"], budget: Float[Tensor, " b"], norm: Norm, generator: torch.Generator | None
) -> Float[Tensor, "b *pixels"]:
    """Return points drawn uniformly from the balls, then clamped to [0, 1]."""
    device = images.device if generator is None else generator.device
    if norm == "linf":
        share = 2 * torch.rand(images.shape, generator=generator, dtype=torch.float64, device=device) - 1
        move = per_image(budget, images) * share.to(images.device)
    else:
        normal = torch.randn(images.shape, generator=generator, dtype=torch.float64, device=device).to(images.device)
        share = torch.rand(images.shape[:1], generator=generator, dtype=torch.float64, device=device)
        length = budget * share.to(images.device) ** (1 / images[0].numel())
        move = per_image(length, normal) * _unit(normal)
    return _project(images.double() + move, images, budget, norm)


def _unit(wide: Float[Tensor, "b *pixels"]) -> Float[Tensor, "b *pixels"]:
    """Return the direction with length 1, and 0 where it vanishes."""
    return wide / per_image(wide.flatten(1).norm(dim=1).clamp(min=TINY), wide)


def per_image(values: Tensor, like: Tensor) -> Tensor:
    """Return a view of one value for each image that multiplies or selects whole images."""
    return values.reshape(-1, *[1] * (like.ndim - 1))


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


def require_autoattack() -> None:
    """Raise unless the package is installed."""
    if importlib.util.find_spec("pyautoattack") is None:
        raise BronetError("autoattack needs pyautoattack; pip install 'bronet[attack]', or choose --attack pgd")


def autoattack(
    model: Model,
    images: Float[Tensor, "b c h w"],
    labels: Int[Tensor, " b"],
    *,
    classes: int,
    norm: Norm,
    eps: float,
    seed: int,
) -> Float[Tensor, "b c h w"]:
    """Return the images that the standard AutoAttack finds in float32; the originals where it finds none."""
    from pyautoattack import AutoAttack

    targeted = classes >= MIN_TARGETED_CLASSES
    attack = AutoAttack(
        model,
        norm={"l2": "L2", "linf": "Linf"}[norm],
        eps=eps,
        seed=seed,
        version="standard" if targeted else "custom",
        attacks=None if targeted else UNTARGETED,
        device=images.device,
    )
    attack.apgd_targeted.n_target_classes = min(MAX_TARGETS, classes - 1)
    attack.fab.n_target_classes = min(MAX_TARGETS, classes - 1)
    with torch.random.fork_rng(devices=[images.device] if images.device.type == "cuda" else []):
        found, _ = attack.run_standard_evaluation(images.float(), labels, batch_size=len(images))
    return found


def preflight(
    model: Model, images: Float[Tensor, "b c h w"], labels: Int[Tensor, " b"], judged: Int[Tensor, " b"]
) -> list[str]:
    """Return, one line each, why an attack's result could mean nothing; an empty list where nothing was found.

    An attack that follows gradients is blind where there are none, where they are random, or where the loss is
    saturated in float32: robust accuracy is then too high. Certificates do not depend on any of this. `judged` are the
    classes that the float64 program gives these images.
    """
    with torch.enable_grad():
        pixels = images.detach().requires_grad_()
        logits = model(pixels)
        loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
        reaches = loss.requires_grad
        gradient = torch.autograd.grad(loss, pixels)[0] if reaches else torch.zeros_like(images)
    with torch.no_grad():
        again = model(images)
    logits = logits.detach()
    changed = (logits - again).abs().amax(dim=1) > SAME_LOGITS * (1 + logits.abs().amax(dim=1))
    saturated = logits.softmax(dim=1).amax(dim=1) == 1
    findings = [
        (gradient.flatten(1).abs().amax(dim=1) == 0, "have no gradient: attacks that follow it cannot find anything"),
        (~gradient.flatten(1).isfinite().all(dim=1), "have a gradient that is not finite"),
        (~logits.isfinite().all(dim=1), "have logits that are not finite"),
        (changed, "got other logits when asked twice: a random network needs an attack on its average"),
        (saturated, "have saturated logits: cross-entropy is flat there in this precision"),
        (logits.argmax(dim=1) != judged, "have another class in this precision than in float64, which judges"),
    ]
    warnings = [f"{int(flaw.sum())} of {len(images)} images {what}" for flaw, what in findings if flaw.any()]
    if logits.shape[1] < MIN_TARGETED_CLASSES:
        warnings.append(f"{logits.shape[1]} classes are too few for AutoAttack's targeted loss; that part is left out")
    return warnings
