"""AutoAttack (standard: APGD-CE, APGD-T, FAB-T, Square) through the package pyautoattack; Tables 10 and 11.

An optional extra. It computes in float32 and may overstep eps by a rounding: `bronet.attack.judge` decides what counts.
"""

import importlib.util
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bronet.attack.judge import Norm
from bronet.attack.preflight import FEWEST_TARGETED_CLASSES
from bronet.errors import BronetError

MOST_TARGETS = 9
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
    require_autoattack()
    from pyautoattack import AutoAttack

    targeted = classes >= FEWEST_TARGETED_CLASSES
    attack = AutoAttack(
        model,
        norm={"l2": "L2", "linf": "Linf"}[norm],
        eps=eps,
        seed=seed,
        version="standard" if targeted else "custom",
        attacks=None if targeted else UNTARGETED,
        device=images.device,
    )
    attack.apgd_targeted.n_target_classes = min(MOST_TARGETS, classes - 1)
    attack.fab.n_target_classes = min(MOST_TARGETS, classes - 1)
    with torch.random.fork_rng(devices=[images.device] if images.device.type == "cuda" else []):
        found, _ = attack.run_standard_evaluation(images.float(), labels, batch_size=len(images))
    return found
