"""AutoAttack (standard: APGD-CE, APGD-T, FAB-T, Square) through the package pyautoattack; Tables 10 and 11.

An optional extra. It computes in float32 and may overstep eps by a rounding: `bronet.attack.judge` decides what counts.

`preflight` says before hours are spent why an attack's result could mean nothing: an attack that follows gradients is
blind where there are none, where they are random, or where the loss is saturated in float32. Robust accuracy is then
too high. Certificates do not depend on any of this.
"""

import importlib.util
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bronet.errors import BronetError
from bronet.run.attack_rows import Norm

MIN_TARGETED_CLASSES = 4
"""Below this AutoAttack's targeted loss (DLR) does not exist."""
SAME_LOGITS = 1e-4
"""Relative difference of logits that float32 may show between two runs of the same program."""
MAX_TARGETS = 9
"""Classes that the standard version aims at."""
UNTARGETED = ["apgd-ce", "fab-t", "square"]
"""What is left of the standard version where the targeted loss does not exist."""


def require_autoattack() -> None:
    """Raise unless the package is installed."""
    if importlib.util.find_spec("pyautoattack") is None:
        raise BronetError("autoattack needs pyautoattack; pip install 'bronet[attack]', or choose --attack pgd")


def autoattack(
    model: Callable[[Tensor], Tensor],
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
    model: Callable[[Tensor], Tensor],
    images: Float[Tensor, "b c h w"],
    labels: Int[Tensor, " b"],
    judged: Int[Tensor, " b"],
) -> list[str]:
    """Return warnings, one line each; an empty list where nothing was found.

    `judged` are the classes that the float64 program gives these images.
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
