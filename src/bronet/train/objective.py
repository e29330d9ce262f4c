"""From a recipe to the loss of a step: LA, cross-entropy or cross-entropy with CR, on plain or EMMA logits.

The losses themselves are in `bronet.losses`; this file only picks one.
"""

from jaxtyping import Float, Int
from torch import Tensor

from bronet.losses import (
    certificate_regularization,
    certificate_regularization_radius,
    cross_entropy,
    drawn_labels,
    emma,
    logit_annealing,
)
from bronet.recipe.schema import LossRecipe


def needs_gap(recipe: LossRecipe) -> bool:
    """Return whether the loss's gradient flows through the Lipschitz constants of the model."""
    return recipe.emma or (recipe.name == "ce+cr" and recipe.cr == "radius")


def objective(
    recipe: LossRecipe,
    logits: Float[Tensor, "b k"],
    labels: Int[Tensor, " b"],
    gap_lipschitz: Float[Tensor, "k k"],
    *,
    emma_eps: float | Tensor,
    targets: Float[Tensor, "b k"] | None = None,
) -> Float[Tensor, ""]:
    """Return the scalar to minimise; `emma_eps` is this step's budget, unused without EMMA.

    With `targets`, a probability for every class of an image, LA is the mean over labels drawn from them.
    """
    weights = None
    if targets is not None:
        logits, labels, weights = drawn_labels(logits, targets)
    if recipe.emma:
        logits = emma(logits, labels, gap_lipschitz, eps=emma_eps)
    if recipe.name == "la":
        loss = logit_annealing(
            logits,
            labels,
            temperature=recipe.temperature,
            offset=recipe.offset,
            beta=recipe.beta,
            weights=weights,
        )
    elif recipe.name == "ce":
        loss = cross_entropy(logits, labels)
    elif recipe.cr == "margin":
        loss = certificate_regularization(logits, labels, gamma=recipe.gamma)
    else:
        loss = certificate_regularization_radius(logits, labels, gap_lipschitz, gamma=recipe.gamma)
    return recipe.scale * loss
